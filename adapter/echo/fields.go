package semelecho

import (
	"errors"
	"maps"
	"reflect"
	"sync"
	"unsafe"

	"github.com/labstack/echo/v4"
)

// Echo's Context tells a value whose name one knows, but not which there are. So
// the map is looked up by name and type: another Echo is an error of New and
// never a value that is silently missing.

// contextType is what Echo's own Context points to.
var contextType = reflect.TypeOf(echo.New().NewContext(nil, nil)).Elem()

func checkFields() error {
	store, ok := contextType.FieldByName("store")
	lock, ok2 := contextType.FieldByName("lock")
	if !ok || !ok2 || store.Type != reflect.TypeFor[echo.Map]() || lock.Type != reflect.TypeFor[sync.RWMutex]() {
		return errors.New("semelecho: Echo " + echo.Version + " is not supported: its Context does not keep its values where the adapter looks for them")
	}
	return nil
}

// valuesOf returns a copy of what was set in c, which is Echo's own or nil.
func valuesOf(c echo.Context) echo.Map {
	if c == nil {
		return nil
	}
	v := reflect.ValueOf(c).Elem()
	lock := (*sync.RWMutex)(unsafe.Pointer(v.FieldByName("lock").UnsafeAddr()))
	lock.RLock()
	defer lock.RUnlock()
	return maps.Clone(*(*echo.Map)(unsafe.Pointer(v.FieldByName("store").UnsafeAddr())))
}

// unwrap returns Echo's own Context: c itself, or what a Context type of the
// program embeds; nil if it embeds none. own reports whether it is c itself.
func unwrap(c echo.Context) (plain echo.Context, own bool) {
	for own = true; c != nil; own = false {
		v := reflect.Indirect(reflect.ValueOf(c))
		if v.Type() == contextType {
			return c, own
		}
		if v.Kind() != reflect.Struct {
			return nil, false
		}
		f := v.FieldByName("Context")
		if !f.IsValid() || !f.CanInterface() {
			return nil, false
		}
		c, _ = f.Interface().(echo.Context)
	}
	return nil, false
}
