# frozen_string_literal: true

require "sinatra/base"

# The base of a modular Sinatra application; a subclass completes it.
class Base < Sinatra::Base
  helpers do
    def greeting = "Hello from modular Sinatra"
  end
end

# The application that is served.
class Shop < Base
  get("/") { greeting }

  run! if app_file == $PROGRAM_NAME
end
