//= link_directory ../stylesheets .css
//= link application.js
