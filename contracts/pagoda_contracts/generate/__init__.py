"""Writes every generated file: CRDs, the chart's schema, pages of docs, protobuf code. Development only."""
