//= require action_cable
//= require room
