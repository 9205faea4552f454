# frozen_string_literal: true

# Sinatra holds a stream, a long poll and WebSockets by its responses, and publishes by Net::HTTP.

require "base64"
require "json"
require "net/http"
require "openssl"
require "sinatra/base"

class Rooms < Sinatra::Base
  set :environment, :production
  set :protection, false
  EVENTS = "application/websocket-events"
  GRIP = URI(ENV.fetch("GRIP_URL"))

  get "/events/:room" do
    headers "Grip-Hold" => "stream", "Grip-Channel" => params[:room]
    content_type "text/event-stream"
    "data: welcome\n\n"
  end

  get "/next/:room" do
    headers "Grip-Hold" => "response", "Grip-Channel" => params[:room], "Grip-Timeout" => "30"
    content_type "text/plain"
    "nothing new\n"
  end

  post "/say/:room" do
    words = request.body.read
    formats = {
      "http-stream" => { "content" => "data: #{words}\n\n" },
      "http-response" => { "body" => "#{words}\n" },
      "ws-message" => { "content" => words }
    }
    items = { items: [{ channel: params[:room], formats: formats }] }
    fields = { "Content-Type" => "application/json", "Authorization" => "Bearer #{token}" }
    answer = Net::HTTP.post(URI("http://#{GRIP.host}:#{GRIP.port}/publish/"), JSON.generate(items), fields)
    status answer.code.to_i
    answer.body
  end

  # Returns the token for publishing, signed with the key of GRIP_URL.
  def token
    said = URI.decode_www_form(GRIP.query).to_h
    coded = ->(bytes) { Base64.urlsafe_encode64(bytes, padding: false) }
    claims = { iss: said["iss"], exp: Time.now.to_i + 600 }
    text = [{ alg: "HS256", typ: "JWT" }, claims].map { |part| coded.(JSON.generate(part)) }.join(".")
    key = Base64.decode64(said["key"].delete_prefix("base64:"))
    "#{text}.#{coded.(OpenSSL::HMAC.digest("SHA256", key, text))}"
  end

  # Handles a WebSocket's events: it echoes messages, and leaves on request.
  post "/chat/:room" do
    halt 400 unless request.media_type == EVENTS
    body = request.body.read.b
    answer = +""
    until body.empty?
      line, body = body.split("\r\n", 2)
      kind, size = line.split
      content = size ? body.slice!(0, size.hex + 2)[0...-2] : nil
      answer << reply(kind, content)
    end
    headers "Sec-WebSocket-Extensions" => "grip"
    content_type EVENTS
    answer
  end

  def reply(kind, content)
    case kind
    when "OPEN" then "OPEN\r\n" + event("TEXT", "c:" + JSON.generate(type: "subscribe", channel: params[:room]))
    when "CLOSE" then content ? event("CLOSE", content) : "CLOSE\r\n"
    when "TEXT" then content == "leave" ? event("CLOSE", [4001].pack("n")) : event("TEXT", "m:#{content}")
    when "BINARY" then event("BINARY", "m:" + content.reverse)
    else ""
    end
  end

  def event(kind, content) = "#{kind} #{content.bytesize.to_s(16)}\r\n#{content}\r\n".b
end

run Rooms
