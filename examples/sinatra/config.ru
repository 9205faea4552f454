# frozen_string_literal: true

# What Penstock (or any Rack server) loads. The application itself is in app.rb.

require_relative "app"

run Converter
