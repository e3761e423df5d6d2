module github.com/semelhq/semel/internal/strict

go 1.26.0

require go.yaml.in/yaml/v4 v4.0.0-rc.6
