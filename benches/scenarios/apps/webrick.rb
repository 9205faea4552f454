# frozen_string_literal: true

# WEBrick with a Rack application: `ruby webrick.rb PORT CONFIG.RU`, in the foreground.
#
# rackup would do, were it not for what cannot be said on its command line: no access log, and as many
# clients at once as the load has connections (the default is 100, the others would wait unanswered).

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
