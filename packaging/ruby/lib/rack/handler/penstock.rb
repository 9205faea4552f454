# frozen_string_literal: true

# Rack 2 looks here for `rackup -s penstock`.

require "penstock/handler"

module Rack
  module Handler
    Penstock = ::Penstock::Handler
    register("penstock", "Rack::Handler::Penstock") if respond_to?(:register)
  end
end
