from shiny import App, render, ui

page = ui.page_fluid(ui.h1("Hello from Shiny"), ui.output_text("text"))


def server(input, output, session):
    @render.text
    def text():
        return "live"


app = App(page, server)
