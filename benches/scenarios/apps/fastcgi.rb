# frozen_string_literal: true

# Rack's FastCGI handler with a Rack application: `ruby fastcgi.rb PORT|SOCKET CONFIG.RU`.
#
# It replaces rackup because of Debian 12's ruby-fcgi: its C half needs a function that Ruby 3.1 no
# longer has, so its Ruby half is used. That half exits when Lighttpd closes a TCP connection before
# the last record is written (on a Unix socket the same is EPIPE, which it handles). Here it
# continues.

require "rack"
require "rack/handler/fastcgi"

# A front end that closes once it has the whole response is not an error.
module LeavesEarly
  def session(&)
    super
  rescue Errno::ECONNRESET
    nil
  end
end
FCGI::Server.prepend(LeavesEarly) if FCGI.const_defined?(:Server)

place, config = ARGV
app, = Rack::Builder.parse_file(config)
options = place.include?("/") ? { File: place } : { Host: "127.0.0.1", Port: Integer(place) }
Rack::Handler::FastCGI.run(app, **options)
