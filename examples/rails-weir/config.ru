# frozen_string_literal: true

# What Penstock (or any Rack server) loads.

require_relative "config/environment"

run Rails.application
