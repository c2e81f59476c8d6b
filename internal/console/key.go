package console

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
)

// Keyed guards a console on a loopback address against the other users of the machine, and against other
// pages in the same browser. A request with the key (?key=) gets a cookie; every other request needs it. The
// name in the request must be the listener's own, so that no other name that resolves to a loopback address
// is served.
type Keyed struct {
	next   http.Handler
	key    string
	cookie string
	host   string
}

// NewKeyed guards a handler that is served at host:port, with a key of its own.
func NewKeyed(next http.Handler, host string) *Keyed {
	_, port, _ := net.SplitHostPort(host)
	return &Keyed{next: next, key: rand.Text(), cookie: "db-controller-console-" + port, host: host}
}

// URL is the address to open.
func (k *Keyed) URL() string { return "http://" + k.host + "/?key=" + k.key }

// ServeHTTP implements http.Handler.
func (k *Keyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch given := r.URL.Query().Get("key"); {
	case !strings.EqualFold(r.Host, k.host):
		refuse(w, http.StatusMisdirectedRequest, "this console is at http://"+k.host)
	case given != "" && k.is(given):
		http.SetCookie(w, &http.Cookie{
			Name: k.cookie, Value: k.key, Path: "/", HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
		})
		w.Header().Set("Referrer-Policy", "no-referrer")
		http.Redirect(w, r, "/", http.StatusSeeOther)
	case !k.has(r):
		refuse(w, http.StatusForbidden, "open the address that db-controller console has printed: it has the key")
	default:
		k.next.ServeHTTP(w, r)
	}
}

func (k *Keyed) has(r *http.Request) bool {
	c, err := r.Cookie(k.cookie)
	return err == nil && k.is(c.Value)
}

func (k *Keyed) is(given string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(k.key)) == 1
}
