module github.com/semelhq/semel/internal/strict

go 1.26.0

require go.yaml.in/yaml/v3 v3.0.6
