# frozen_string_literal: true

# The Rack application for Penstock or any other Rack server. The code is in app.rb.

require_relative "app"
require "rack/mock"

# Sinatra builds its middleware and compiles the views at the first request. Making that request
# here, before workers are forked, lets them share that memory.
Rack::MockRequest.new(Converter).get("/")

run Converter
