//! `penstock man [PAGE]`: manual pages, made from the definition of the command line and from the
//! table of options.
//!
//! # Invariants
//! - No text of a page is written here, so that no page differs from `--help` and the parser.

use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::{Arguments, CliError};

/// The name of the page about the configuration file.
const CONFIGURATION: &str = "penstock.toml";

/// Returns the page, or writes every page as a file of the folder `all`.
pub(super) fn run(page: &str, all: Option<&Path>) -> Result<String, CliError> {
    let mut commands = Vec::new();
    collect(root(), &mut commands);
    if let Some(folder) = all {
        return Ok(write_all(&commands, folder)?);
    }
    if page == CONFIGURATION {
        return Ok(penstock_config::man_page(env!("CARGO_PKG_VERSION")));
    }
    let command = commands
        .iter()
        .find(|command| [page, &format!("penstock-{page}")].contains(&page_name(command)))
        .ok_or_else(|| {
            let names: Vec<_> = commands.iter().map(page_name).collect();
            CliError::Usage(format!(
                "no manual page `{page}`; there are {}, {CONFIGURATION}",
                names.join(", ")
            ))
        })?;
    Ok(render(command)?)
}

/// An empty argument would let the next one take its place.
const NO_DATE: &str = " ";

/// The command line, with the names of all verbs filled in.
fn root() -> Command {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    root
}

/// Collects a command and all of its verbs.
fn collect(command: Command, commands: &mut Vec<Command>) {
    let verbs: Vec<_> = command.get_subcommands().cloned().collect();
    commands.push(command);
    for verb in verbs.into_iter().filter(|verb| !verb.is_hide_set()) {
        collect(verb, commands);
    }
}

/// The name of a command's page, such as `penstock-config-explain`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or("penstock")
}

fn render(command: &Command) -> Result<String, String> {
    let mut page = Vec::new();
    let source = concat!("penstock ", env!("CARGO_PKG_VERSION"));
    // The version of the build does not belong there: it would differ with each commit.
    let without_build = command.clone().long_version(None::<&str>);
    let rendered = Man::new(without_build)
        .date(NO_DATE)
        .source(source)
        .render(&mut page);
    rendered.map_err(|error| format!("{}: {error}", page_name(command)))?;
    let text = String::from_utf8(page).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Writes every page to the folder of its section, `man1` or `man5`, below `folder`.
fn write_all(commands: &[Command], folder: &Path) -> Result<String, String> {
    let path = |command| format!("man1/{}.1", page_name(command));
    let pages = commands
        .iter()
        .map(|command| (path(command), render(command)));
    let configuration = penstock_config::man_page(env!("CARGO_PKG_VERSION"));
    let configuration = (format!("man5/{CONFIGURATION}.5"), Ok(configuration));
    let mut number = 0;
    for (name, text) in pages.chain([configuration]) {
        let path = folder.join(name);
        write_file(&path, &text?).map_err(|error| format!("{}: {error}", path.display()))?;
        number += 1;
    }
    Ok(format!("{number} manual pages in {}", folder.display()))
}

#[expect(clippy::disallowed_methods, reason = "no event loop runs in this verb")]
fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_with_its_arguments() {
        let mut commands = Vec::new();
        collect(root(), &mut commands);
        assert!(commands.len() > 20);
        for command in &commands {
            let page = render(command).unwrap();
            let name = page_name(command);
            assert!(
                page.contains(&format!("\n.TH {name} 1")),
                "{name}: {page:.300}"
            );
            for argument in command.get_arguments().filter_map(clap::Arg::get_long) {
                let written = format!("\\-\\-{}", argument.replace('-', "\\-"));
                assert!(page.contains(&written), "{name}: {argument}: {page}");
            }
        }
    }

    #[test]
    fn an_unknown_page_is_refused_with_the_names_of_all() {
        let Err(CliError::Usage(text)) = run("penstock-nope", None) else {
            panic!("the page was found");
        };
        assert!(
            text.contains("penstock-bench-run") && text.contains("penstock.toml"),
            "{text}"
        );
    }
}
