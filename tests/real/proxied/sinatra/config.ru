# frozen_string_literal: true

require "json"
require "sinatra/base"

# Shows how Rack sees the request.
class Links < Sinatra::Base
  set :environment, :production
  set :host_authorization, {}

  get "/" do
    content_type :json
    { ssl: request.ssl?, ip: request.ip, host: request.host, link: url("/") }.to_json
  end

  get("/enter") { redirect to("/") }
end

run Links
