# frozen_string_literal: true

# WEBrick with a Rack application: `ruby webrick.rb PORT CONFIG.RU`, in the foreground.
#
# It replaces rackup, whose command line can neither turn the access log off nor raise the number of
# clients to that of the load's connections (the default is 100; the others would wait unanswered).

require "rack"
require "webrick"

port, config = ARGV
app, = Rack::Builder.parse_file(config)
Rack::Handler::WEBrick.run(
  app,
  Host: "127.0.0.1",
  Port: Integer(port),
  AccessLog: [],
  DoNotReverseLookup: true,
  MaxClients: 1024
) do |server|
  %w[INT TERM].each { |signal| trap(signal) { server.shutdown } }
end
