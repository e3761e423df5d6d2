// Package words puts what a page says into the reader's language.
package words

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Language is the one of ?lang=, or of the cookie lang, or that the browser
// prefers: en or ja.
func Language(r *http.Request) string {
	said := r.FormValue("lang")
	if cookie, err := r.Cookie("lang"); said == "" && err == nil {
		said = cookie.Value
	}
	if said == "ja" || said == "en" {
		return said
	}
	if strings.HasPrefix(r.Header.Get("Accept-Language"), "ja") {
		return "ja"
	}
	return "en"
}

// Japanese is what a page says, by what it says in English.
type Japanese map[string]string

// Load reads texts that are part of the program.
func Load(text []byte) (all Japanese) {
	if err := json.Unmarshal(text, &all); err != nil {
		panic(err)
	}
	return all
}

// In returns what puts a text into the language, or leaves it as it is.
func (j Japanese) In(lang string) func(string) string {
	return func(text string) string {
		if s, ok := j[text]; ok && lang == "ja" {
			return s
		}
		return text
	}
}
