# frozen_string_literal: true

# What Penstock (or any Rack server) loads. The application itself is in app.rb.

require_relative "app"
require "rack/mock"

# Sinatra builds its chain of middleware and compiles the views at the first request. What is there
# before workers are forked they share, so that request is made here.
Rack::MockRequest.new(Converter).get("/")

run Converter
