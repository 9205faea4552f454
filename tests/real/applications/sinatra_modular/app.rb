# frozen_string_literal: true

require "sinatra/base"

# A modular Sinatra application, which a subclass completes.
class Base < Sinatra::Base
  helpers do
    def greeting = "Hello from modular Sinatra"
  end
end

# What is served.
class Shop < Base
  get("/") { greeting }

  run! if app_file == $PROGRAM_NAME
end
