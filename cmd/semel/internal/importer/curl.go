package importer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Files reads a file that a curl command names with @. Nil reads none.
type Files func(name string, limit int64) ([]byte, error)

// FilesIn reads files of the working directory and wherever names lead.
func FilesIn(dir string) Files {
	return func(name string, limit int64) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, limit))
	}
}

// Curl makes a draft of a curl command, written for bash. $NAME in it becomes
// {{env "NAME"}}. What would change the request in a way that a plan cannot say
// is an error; what only concerns curl is left out. The files of -d @file are
// read; that of --data-binary @file the plan names.
func Curl(line string, files Files) (*Draft, error) {
	r, err := curl(line, files)
	if err != nil {
		return nil, err
	}
	return r.draft()
}

func curl(line string, files Files) (*request, error) {
	if len(line) > MaxBody {
		return nil, errors.New("importer: the command is too long")
	}
	r := &request{from: "a curl command"}
	words, piped, err := shellWords(drop(strings.TrimPrefix(strings.TrimLeft(line, " \t\r\n"), "$ ")), func(name string) string {
		return r.env(name, "the shell variable "+name)
	})
	if err != nil {
		return nil, fmt.Errorf("importer: the command: %w", err)
	}
	if piped {
		r.note("What the output was piped into was left out.")
	}
	if len(words) == 0 || strings.TrimSuffix(filepath.Base(words[0]), ".exe") != "curl" {
		return nil, errors.New("importer: the command is not curl")
	}
	c := &curlCommand{request: r, files: files}
	if err := c.options(words[1:]); err != nil {
		return nil, fmt.Errorf("importer: curl: %w", err)
	}
	if err := c.finish(); err != nil {
		return nil, fmt.Errorf("importer: curl: %w", err)
	}
	return r, nil
}

type curlCommand struct {
	*request
	files   Files
	data    []string
	hasData bool
	get     bool
	head    bool
	json    bool
	user    string
	bearer  string
	cookies []string
	removed []string
}

// curlShort are the long names of short options.
var curlShort = map[byte]string{
	'X': "request", 'H': "header", 'd': "data", 'u': "user", 'b': "cookie", 'G': "get", 'I': "head", 'A': "user-agent", 'e': "referer",
	'F': "form", 'T': "upload-file", 'x': "proxy", 'E': "cert", 'K': "config", 'k': "insecure", 'L': "location", 'o': "output", 'm': "max-time",
	'w': "write-out", 'D': "dump-header", 'c': "cookie-jar", 's': "silent", 'S': "show-error", 'i': "include", 'v': "verbose", 'f': "fail",
	'#': "progress-bar", 'N': "no-buffer", 'g': "globoff", 'O': "remote-name", 'J': "remote-header-name", '0': "http1.0", '4': "ipv4", '6': "ipv6",
	'q': "disable", 'r': "range", 'n': "netrc", 'Z': "parallel", ':': "next",
}

// What an option is: whether it has an argument, and if it is refused, why.
type curlOption struct {
	arg    bool
	ignore bool
	refuse string
}

var curlOptions = func() map[string]curlOption {
	m := map[string]curlOption{
		"form":                  {arg: true, refuse: "a multipart body has a boundary that curl makes up; give the body in a file, and its Content-Type"},
		"form-string":           {arg: true, refuse: "see -F"},
		"upload-file":           {arg: true, refuse: "write -X PUT --data-binary @file"},
		"proxy":                 {arg: true, refuse: "the probe sends to the target itself"},
		"config":                {arg: true, refuse: "what is in the file is not seen"},
		"netrc":                 {refuse: "what is in the file is not seen"},
		"http1.0":               {refuse: "the probe speaks HTTP/1.1 and HTTP/2"},
		"http3":                 {refuse: "the probe speaks HTTP/1.1 and HTTP/2"},
		"unix-socket":           {arg: true, refuse: "the probe sends to addresses"},
		"resolve":               {arg: true, refuse: "put the address in the URL, and the name in -H 'Host: ...'"},
		"connect-to":            {arg: true, refuse: "put the address in the URL, and the name in -H 'Host: ...'"},
		"digest":                {refuse: "it takes two requests"},
		"ntlm":                  {refuse: "it takes several requests"},
		"negotiate":             {refuse: "it takes several requests"},
		"aws-sigv4":             {arg: true, refuse: "it signs each request separately"},
		"range":                 {arg: true, refuse: "write -H 'Range: ...'"},
		"next":                  {refuse: "give one request alone"},
		"request":               {arg: true},
		"header":                {arg: true},
		"data":                  {arg: true},
		"data-ascii":            {arg: true},
		"data-raw":              {arg: true},
		"data-binary":           {arg: true},
		"json":                  {arg: true},
		"user":                  {arg: true},
		"cookie":                {arg: true},
		"url":                   {arg: true},
		"user-agent":            {arg: true},
		"referer":               {arg: true},
		"cert":                  {arg: true},
		"key":                   {arg: true},
		"cacert":                {arg: true},
		"get":                   {},
		"head":                  {},
		"insecure":              {},
		"location":              {},
		"http1.1":               {},
		"http2":                 {},
		"basic":                 {ignore: true},
		"compressed":            {ignore: true},
		"tlsv1.2":               {ignore: true},
		"tlsv1.3":               {ignore: true},
		"http2-prior-knowledge": {},
		"data-urlencode":        {arg: true},
		"oauth2-bearer":         {arg: true},
	}
	for _, name := range strings.Fields("silent show-error include verbose fail fail-with-body progress-bar no-buffer globoff remote-name " +
		"remote-header-name ipv4 ipv6 disable parallel no-progress-meter path-as-is no-keepalive tcp-nodelay trace-time styled-output") {
		m[name] = curlOption{ignore: true}
	}
	for _, name := range strings.Fields("output max-time connect-timeout write-out dump-header cookie-jar retry retry-delay retry-max-time " +
		"max-redirs stderr trace trace-ascii limit-rate keepalive-time") {
		m[name] = curlOption{ignore: true, arg: true}
	}
	return m
}()

func (c *curlCommand) options(words []string) error {
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		var names []string
		attached, hasAttached := "", false
		switch {
		case w == "--" || w == "":
			continue
		case strings.HasPrefix(w, "--"):
			names = []string{w[2:]}
		case w[0] == '-' && len(w) > 1:
			for i := 1; i < len(w); i++ {
				long, ok := curlShort[w[i]]
				if !ok {
					return fmt.Errorf("the option -%s is not known", label(w[i:i+1]))
				}
				names = append(names, long)
				if curlOptions[long].arg {
					attached, hasAttached = w[i+1:], i+1 < len(w)
					break
				}
			}
		default:
			if err := c.apply("url", w); err != nil {
				return err
			}
			continue
		}
		for _, name := range names {
			o, ok := curlOptions[name]
			switch {
			case !ok:
				return fmt.Errorf("the option --%s is not known", label(name))
			case o.refuse != "":
				return fmt.Errorf("--%s: %s", name, o.refuse)
			}
			arg := ""
			if o.arg {
				switch {
				case hasAttached:
					arg = attached
				case len(words) == 0:
					return fmt.Errorf("--%s has no argument", name)
				default:
					arg, words = words[0], words[1:]
				}
			}
			if o.ignore {
				continue
			}
			if err := c.apply(name, arg); err != nil {
				return fmt.Errorf("--%s: %w", name, err)
			}
		}
	}
	return nil
}

func (c *curlCommand) apply(name, arg string) error {
	switch name {
	case "url":
		if c.url != "" {
			return errors.New("there are two URLs; give one request alone")
		}
		c.url = arg
	case "request":
		c.method = arg
	case "header":
		return c.addHeader(arg)
	case "data", "data-ascii":
		return c.addData(arg, true)
	case "data-raw":
		c.data, c.hasData = append(c.data, arg), true
	case "data-binary":
		return c.addData(arg, false)
	case "json":
		c.json = true
		return c.addData(arg, false)
	case "data-urlencode":
		return c.addEncoded(arg)
	case "user":
		c.user = arg
	case "oauth2-bearer":
		c.bearer = arg
	case "cookie":
		if !strings.Contains(arg, "=") && !holePattern.MatchString(arg) {
			return errors.New("cookies in a file are not read; write -b name=value")
		}
		c.cookies = append(c.cookies, arg)
	case "user-agent":
		return c.addHeader("User-Agent: " + arg)
	case "referer":
		return c.addHeader("Referer: " + arg)
	case "get":
		c.get = true
	case "head":
		c.head = true
	case "insecure":
		c.note("-k was left out: certificates are verified. Name the target's own authority in target.ca_file.")
	case "location":
		c.note("-L was left out: redirects are not followed.")
	case "http1.1":
		c.protocol = "http1"
	case "http2", "http2-prior-knowledge":
		c.protocol = "http2"
	case "cacert":
		c.caFile = arg
	case "cert":
		if strings.Contains(arg, ":") {
			return errors.New("a password of a certificate is not supported; give its key unencrypted")
		}
		c.cert = arg
	case "key":
		c.request.key = arg
	}
	return nil
}

func (c *curlCommand) addHeader(line string) error {
	if strings.HasPrefix(line, "@") {
		return errors.New("header fields in a file are not read")
	}
	name, value, found := strings.Cut(line, ":")
	if !found {
		// "Name;" is how curl is told to send an empty field.
		name, rest, found := strings.Cut(line, ";")
		if !found || rest != "" {
			return errors.New("a header field has no colon")
		}
		c.header = append(c.header, field{Name: strings.TrimSpace(name)})
		return nil
	}
	name, value = strings.TrimSpace(name), strings.Trim(value, " \t")
	if value == "" {
		c.removed = append(c.removed, strings.ToLower(name))
		return nil
	}
	c.header = append(c.header, field{Name: name, Value: value})
	return nil
}

// addData adds a piece of the body. Read from a file, curl leaves out its line
// breaks where text is meant.
func (c *curlCommand) addData(arg string, asText bool) error {
	c.hasData = true
	name, isFile := strings.CutPrefix(arg, "@")
	if !isFile {
		c.data = append(c.data, arg)
		return nil
	}
	if name == "-" || name == "" {
		return errors.New("the standard input is not read; name a file")
	}
	if !asText && len(c.data) == 0 && c.bodyFile == "" {
		c.bodyFile = name
		return nil
	}
	if c.files == nil {
		return errors.New("files are not read here")
	}
	data, err := c.files(name, MaxBody+1)
	if err != nil {
		return err
	}
	if len(data) > MaxBody {
		return fmt.Errorf("the file is larger than %d KiB; use --data-binary", MaxBody>>10)
	}
	text := drop(string(data))
	if asText {
		text = strings.NewReplacer("\r", "", "\n", "", "\x00", "").Replace(text)
	}
	c.data = append(c.data, text)
	return nil
}

func (c *curlCommand) addEncoded(arg string) error {
	name, value, found := strings.Cut(arg, "=")
	if !found {
		name, value = "", arg
	}
	if strings.Contains(name, "@") || !found && strings.Contains(arg, "@") {
		return errors.New("files are not read here")
	}
	if holePattern.MatchString(value) {
		return errors.New("a shell variable in it cannot be encoded before its value is known")
	}
	enc := url.QueryEscape(value)
	if name != "" {
		enc = name + "=" + enc
	}
	c.data, c.hasData = append(c.data, enc), true
	return nil
}

func (c *curlCommand) has(name string) bool {
	for _, f := range c.header {
		if strings.EqualFold(f.Name, name) {
			return true
		}
	}
	for _, r := range c.removed {
		if strings.EqualFold(r, name) {
			return true
		}
	}
	return false
}

func (c *curlCommand) finish() error {
	if c.url == "" {
		return errors.New("there is no URL")
	}
	if !strings.Contains(c.url, "://") && !strings.HasPrefix(c.url, holeOpen) {
		c.url = "http://" + c.url
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(c.url, c.url[:strings.Index(c.url+"://", "://")]+"://"), "/")
	if strings.ContainsAny(path, "{}[]") {
		return errors.New("the URL has { or [ in it, which makes several requests of one; encode them")
	}
	if c.bodyFile != "" && len(c.data) > 0 {
		return errors.New("a file and other data together are not supported")
	}
	body := strings.Join(c.data, "&")
	if c.json {
		body = strings.Join(c.data, "")
	}
	switch {
	case c.get && c.bodyFile != "":
		return errors.New("-G with a file is not supported")
	case c.get && body != "":
		mark := "?"
		if strings.Contains(c.url, "?") {
			mark = "&"
		}
		base, _, _ := strings.Cut(c.url, "#")
		c.url, body = base+mark+body, ""
	case c.json:
		if !c.has("Content-Type") {
			c.header = append(c.header, field{Name: "Content-Type", Value: "application/json"})
		}
		if !c.has("Accept") {
			c.header = append(c.header, field{Name: "Accept", Value: "application/json"})
		}
	case c.hasData && !c.has("Content-Type"):
		c.header = append(c.header, field{Name: "Content-Type", Value: "application/x-www-form-urlencoded"})
	}
	c.body = []byte(body)
	if c.method == "" {
		switch {
		case c.head:
			c.method = "HEAD"
		case c.hasData && !c.get:
			c.method = "POST"
		default:
			c.method = "GET"
		}
	}
	if c.user != "" && !c.has("Authorization") {
		switch {
		case holePattern.MatchString(c.user):
			// The value is only known later, and so is its base64: by way of a variable.
			return errors.New("-u with a shell variable: write -H \"Authorization: Basic $NAME\", with the base64 of user:password in NAME")
		case !strings.Contains(c.user, ":"):
			return errors.New("-u without a password asks for one; write user:password")
		}
		c.header = append(c.header, field{Name: "Authorization", Value: "Basic " + base64.StdEncoding.EncodeToString([]byte(c.user))})
	}
	if c.bearer != "" && !c.has("Authorization") {
		c.header = append(c.header, field{Name: "Authorization", Value: "Bearer " + c.bearer})
	}
	if len(c.cookies) > 0 {
		c.header = append(c.header, field{Name: "Cookie", Value: strings.Join(c.cookies, "; ")})
	}
	switch {
	case c.cert != "" && c.request.key == "":
		c.request.key = c.cert
	case c.cert == "" && c.request.key != "":
		return errors.New("--key without --cert")
	}
	return nil
}
