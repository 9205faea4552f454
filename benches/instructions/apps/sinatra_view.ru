require "sinatra/base"
require_relative "one_view"

class View < Sinatra::Base
  set :host_authorization, permitted_hosts: []
  template(:page) { "<p><%= @name %></p>" }

  get "/" do
    @name = OneView.name
    erb :page
  end
end

run View
