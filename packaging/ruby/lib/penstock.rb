# frozen_string_literal: true

require "penstock/executable"
require "penstock/version"
