// Package gatewayfile reads the configuration file of semel gateway, explains every
// setting of every route and where it comes from, and builds the router that the file
// describes.
package gatewayfile
