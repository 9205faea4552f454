# frozen_string_literal: true

# `rack.input`: the request body, complete before the application sees it. `rack_app` calls `open` once a
# request. A body in memory becomes a StringIO of its own; a larger one is an unlinked temporary file
# that the server passes as a descriptor. Both are binary, end by themselves, and can be rewound, as
# Rack 2 asks.
module PenstockWorker
  # Where request bodies come from.
  module Input
    module_function

    # The stream for a body as `Slot#receive` gave it; the caller closes what is a file.
    def open(slot, body)
      body ? StringIO.new(body) : slot.receive_file.binmode
    end
  end
end
