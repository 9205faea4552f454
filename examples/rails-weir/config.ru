# frozen_string_literal: true

# The Rack application for Penstock or any other Rack server.

require_relative "config/environment"

run Rails.application
