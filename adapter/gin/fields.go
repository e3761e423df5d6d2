package semelgin

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gin-gonic/gin"
)

// fields are what a context needs to run the rest of a chain, and what gin has
// no way to hand over: Context.Copy leaves the chain out. They are looked up by
// name and type, so that another gin is an error of New and never a guess.
type fields struct {
	engine   *gin.Engine
	handlers gin.HandlersChain
	index    int8
	fullPath string
}

func field[T any](c *gin.Context, name string) *T {
	v := reflect.ValueOf(c).Elem().FieldByName(name)
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

func checkFields() error {
	t := reflect.TypeFor[gin.Context]()
	for name, want := range map[string]reflect.Type{
		"engine":   reflect.TypeFor[*gin.Engine](),
		"handlers": reflect.TypeFor[gin.HandlersChain](),
		"index":    reflect.TypeFor[int8](),
		"fullPath": reflect.TypeFor[string](),
	} {
		if f, ok := t.FieldByName(name); !ok || f.Type != want {
			return fmt.Errorf("semelgin: gin %s is not supported: its Context has no field %s of type %v", gin.Version, name, want)
		}
	}
	return nil
}

func fieldsOf(c *gin.Context) fields {
	return fields{
		engine:   *field[*gin.Engine](c, "engine"),
		handlers: *field[gin.HandlersChain](c, "handlers"),
		index:    *field[int8](c, "index"),
		fullPath: c.FullPath(),
	}
}

// set puts c where the context of f was in its chain.
func (f fields) set(c *gin.Context) {
	*field[gin.HandlersChain](c, "handlers") = f.handlers
	*field[int8](c, "index") = f.index
	*field[string](c, "fullPath") = f.fullPath
}

// moveIndex moves c to where own is in their chain.
func moveIndex(c, own *gin.Context) {
	*field[int8](c, "index") = *field[int8](own, "index")
}
