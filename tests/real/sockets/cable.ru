# Action Cable without the rest of Rails.

require "logger"
require "action_cable"

class Connection < ActionCable::Connection::Base
end

class EchoChannel < ActionCable::Channel::Base
  def subscribed
    stream_from "room"
  end

  def say(data)
    transmit({ "text" => data["text"], "process" => Process.pid })
  end
end

config = ActionCable.server.config
config.logger = Logger.new(File::NULL)
config.cable = { "adapter" => "async" }
config.connection_class = -> { Connection }
config.disable_request_forgery_protection = true
config.log_tags = []

run ActionCable.server
