# frozen_string_literal: true

# Rack 3 looks here for `rackup -s penstock`.

require "penstock/handler"

module Rackup
  module Handler
    Penstock = ::Penstock::Handler
    register :penstock, Penstock if respond_to?(:register)
  end
end
