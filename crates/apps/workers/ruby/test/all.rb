# frozen_string_literal: true

# Runs every test of the Ruby worker: `ruby crates/apps/workers/ruby/test/all.rb`. With RACK3_HOME
# naming a directory made by `gem install --install-dir FOLDER rack`, the tests for Rack 3 run
# against that version instead of a stand-in.

require "minitest/autorun"
Dir["#{__dir__}/*_test.rb"].sort.each { |file| require file }
