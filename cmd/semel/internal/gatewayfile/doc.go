// Package gatewayfile reads the configuration file of semel gateway, says of every
// setting of every route what it is and where it comes from, and makes the router
// that it describes.
package gatewayfile
