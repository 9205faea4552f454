# frozen_string_literal: true

# Classic Sinatra, run as `ruby hello.rb`: no config.ru, one view, one file in public/.
require "sinatra"

get "/" do
  erb :index
end
