# frozen_string_literal: true

require "roda"

# Roda without a config.ru.
class App < Roda
  route do |r|
    r.root { "Hello from Roda" }
  end
end
