//! Application servers: Gunicorn, Uvicorn, Puma, Unicorn, uWSGI, Passenger, Procfiles.
//!
//! A reader for each language makes settings with literal values (`python`, `ruby`, `ini`), and
//! `settings` writes them as an application.

mod ini;
mod passenger;
mod procfile;
mod python;
mod ruby;
mod settings;
#[cfg(test)]
mod tests;
mod value;

use std::path::Path;

use crate::answers::Product;
use crate::directives::{DirectiveId, DirectiveLog};
use crate::{ImportError, ServerKind, Translation};

use settings::AppTranslator;
use value::ScriptValue;

/// A setting of a file.
#[derive(Debug)]
struct AppSetting {
    id: DirectiveId,
    name: String,
    values: Vec<ScriptValue>,
}

/// Translates a file of an application server. `dir` is the folder of the application, where the
/// configuration is to lie in another one.
pub(crate) fn import(
    kind: ServerKind,
    file: &Path,
    text: &str,
    dir: Option<&Path>,
) -> Result<Translation, ImportError> {
    let product = match kind {
        ServerKind::Gunicorn => Product::Gunicorn,
        ServerKind::Uvicorn => Product::Uvicorn,
        ServerKind::Puma => Product::Puma,
        ServerKind::Unicorn => Product::Unicorn,
        ServerKind::Uwsgi => Product::Uwsgi,
        _ => Product::Passenger,
    };
    let mut log = DirectiveLog::new(product);
    if kind == ServerKind::Procfile {
        return procfile::import(file, text, dir, log);
    }
    let settings = match kind {
        ServerKind::Gunicorn | ServerKind::Uvicorn => python::read(kind, file, text, &mut log)?,
        ServerKind::Puma | ServerKind::Unicorn => ruby::read(file, text, &mut log)?,
        ServerKind::Uwsgi => ini::read(file, text, &mut log)?,
        _ => passenger::read(file, text, &mut log)?,
    };
    let mut translator = AppTranslator::new(kind, file, log);
    for setting in &settings {
        translator.apply(setting);
    }
    Ok(translator.finish(file, dir))
}
