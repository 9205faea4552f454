import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    mo.md("# Hello from marimo")
    return
