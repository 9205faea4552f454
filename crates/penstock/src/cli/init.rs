//! `penstock init`, also `penstock config init`: what a start finds in a folder, as a
//! `penstock.toml`.

use std::path::PathBuf;

use clap::Args;
use penstock_config::{App, AppKind, Config, FILE_NAME, Invocation};
use penstock_import::FolderHints;

use super::import::write_file;
use super::{CliError, celery, check};
use crate::django_files::DjangoFiles;

/// The arguments of `init`.
#[derive(Debug, Args)]
pub(super) struct InitArguments {
    /// The folder [default: this one]
    folder: Option<PathBuf>,
    /// Print the file, and write none
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &InitArguments) -> Result<String, CliError> {
    let cwd = std::env::current_dir();
    let cwd = cwd.map_err(|error| format!("the current directory: {error}"))?;
    let folder = arguments
        .folder
        .as_ref()
        .map_or_else(|| cwd.clone(), |it| cwd.join(it));
    let file = folder.join(FILE_NAME);
    if file.exists() {
        let problem = format!("{}: is there already", file.display());
        return Err(CliError::Usage(problem));
    }
    let resolve = |ignores_env_file: bool| -> Result<Config, CliError> {
        let invocation = Invocation {
            target: Some(folder.display().to_string()),
            ignores_env_file,
            cwd: cwd.clone(),
            ..Invocation::default()
        };
        check::resolve_and_validate(&invocation).map_err(CliError::Usage)
    };
    let mut config = resolve(false)?;
    let django_files = DjangoFiles::ask(&config, false);
    django_files.apply(&mut config);
    let hints = FolderHints {
        unserved: django_files.unserved(),
        celery: find_celery(&config),
    };
    let text = penstock_import::write_folder_config(&config, &resolve(true)?, &hints);
    if arguments.print {
        return Ok(text.trim_end().to_owned());
    }
    write_file(&file, &text, false)?;
    Ok(format!("wrote {}\n\n{}", file.display(), text.trim_end()))
}

/// The module of the project's Celery application, unless its Procfile runs Celery already.
fn find_celery(config: &Config) -> Option<String> {
    let is_python = |app: &&App| matches!(app.kind, AppKind::Wsgi | AppKind::Asgi);
    let app = config.apps.values().find(is_python)?;
    let is_run = |program: &App| program.command.iter().any(|word| word.contains("celery"));
    match config.programs().any(is_run) {
        true => None,
        false => celery::find_module(&app.dir),
    }
}
