# frozen_string_literal: true

# Classic Sinatra, as `ruby hello.rb` runs it: no config.ru, a view, a file of public/.
require "sinatra"

get "/" do
  erb :index
end
