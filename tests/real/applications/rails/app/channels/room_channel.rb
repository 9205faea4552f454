# frozen_string_literal: true

# A room: every message goes to all subscribers.
class RoomChannel < ApplicationCable::Channel
  def subscribed
    stream_from "room"
    transmit({ process: Process.pid })
  end

  def say(data)
    ActionCable.server.broadcast("room", { text: data["text"] })
  end
end
