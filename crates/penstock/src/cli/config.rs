//! `penstock config example | schema | explain WORD`: the built-in documentation of the
//! configuration file.

use penstock_import::{Explanation, Product};

use super::{CliError, ConfigTopic, framework_words, init};

pub(super) fn run(topic: &ConfigTopic) -> Result<String, CliError> {
    let text = match topic {
        ConfigTopic::Example => penstock_config::example_file(),
        ConfigTopic::Init(arguments) => return init::run(arguments),
        ConfigTopic::Schema => penstock_config::json_schema(),
        ConfigTopic::Explain { key } => match penstock_config::explain_key(key) {
            Some(text) => text,
            None => framework_words::explain(key)
                .or_else(|| explain_foreign_word(key))
                .or_else(|| list_hits(key))
                .ok_or_else(|| CliError::Usage(unknown_word(key)))?,
        },
    };
    Ok(text.trim_end().to_owned())
}

/// Most keys of one answer whose documentation follows.
const MAX_KEYS: usize = 3;

/// The answers for a word of other servers, with the documentation of the keys that they name.
fn explain_foreign_word(word: &str) -> Option<String> {
    let found = penstock_import::explain_word(word);
    let mut text = String::new();
    let mut keys: Vec<String> = Vec::new();
    for Explanation {
        product,
        word,
        answer,
        keys: named,
    } in &found
    {
        text.push_str(&format!(
            "{word} ({}): {answer}\n  see {}\n",
            product.as_str(),
            product.page()
        ));
        for key in named.iter().take(MAX_KEYS) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
    }
    if !found.is_empty() {
        text.push_str(
            "The documents are in share/doc/penstock of the Debian package and the tarball, and in \
             the sources.\n",
        );
    }
    let mut explained: Vec<String> = Vec::new();
    for key in &keys {
        if let Some(meaning) =
            penstock_config::explain_key(key).filter(|it| !explained.contains(it))
        {
            text.push('\n');
            text.push_str(&meaning);
            explained.push(meaning);
        }
    }
    (!found.is_empty()).then_some(text)
}

/// The keys and tables whose names or texts have a word, a line each.
fn list_hits(text: &str) -> Option<String> {
    let hits = penstock_config::search_options(text);
    let first = hits.first()?;
    let mut list = format!("no key has this name; `{text}` is in the texts of\n");
    for hit in &hits {
        list.push_str(&format!("  {}  {}\n", hit.name, hit.summary));
    }
    let example = first.name.trim_matches(['[', ']']);
    list.push_str(&format!("Explain one: penstock config explain {example}\n"));
    Some(list)
}

/// The answer of the tables for a long option of another application server.
pub(super) fn explain_foreign_flag(flag: &str) -> Option<String> {
    let word = flag.strip_prefix("--")?.replace('-', "_");
    let found = penstock_import::explain_word(&word);
    let found = found.into_iter().find(|it| {
        let names_options = APPLICATION_SERVERS.contains(&it.product);
        names_options && it.word.replace('-', "_") == word
    })?;
    let (product, answer) = (found.product.as_str(), found.answer);
    Some(format!(
        "`{flag}` of {product}: {answer} See penstock config explain {word}"
    ))
}

/// Servers whose settings are options of their command lines too.
const APPLICATION_SERVERS: [Product; 4] = [
    Product::Gunicorn,
    Product::Uvicorn,
    Product::Puma,
    Product::Uwsgi,
];

/// The error for a word that neither Penstock nor another server has.
fn unknown_word(word: &str) -> String {
    let near = penstock_import::similar_words(word);
    let near: Vec<String> = near
        .iter()
        .map(|(word, product): &(&str, Product)| format!("`{word}` ({})", product.as_str()))
        .collect();
    match near.is_empty() {
        true => format!("no configuration key `{word}`"),
        false => format!(
            "no configuration key `{word}`: did you mean {}?",
            near.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_servers_lead_to_keys() {
        let rows = [
            ("client_max_body_size", "(nginx)", "limits.body_bytes\n"),
            (
                "proxy_read_timeout",
                "(nginx)",
                "apps.NAME.response_timeout",
            ),
            ("maxconn", "(HAProxy)", "limits.connections\n"),
            ("lb_policy", "(Caddy)", "upstreams.NAME.balance"),
        ];
        for (word, product, key) in rows {
            let text = explain_foreign_word(word).unwrap();
            assert!(
                text.contains(product) && text.contains(key),
                "{word}: {text}"
            );
        }
        assert_eq!(explain_foreign_word("frobnicate"), None);
    }

    #[test]
    fn words_of_texts_lead_to_keys() {
        let text = list_hits("celery").unwrap();
        assert!(
            text.contains("\n  [jobs.NAME]  A program that serves no requests: "),
            "{text}"
        );
        assert!(
            text.ends_with("penstock config explain jobs.NAME\n"),
            "{text}"
        );
        let example = text.split_whitespace().next_back().unwrap();
        assert!(penstock_config::explain_key(example).is_some(), "{text}");
        assert_eq!(list_hits("frobnicate"), None);
    }

    #[test]
    fn options_of_other_application_servers_have_the_answer_of_their_table() {
        let told = explain_foreign_flag("--worker-tmp-dir").unwrap();
        assert_eq!(
            told,
            "`--worker-tmp-dir` of Gunicorn: not needed: a worker is watched by its socket, without \
             a file. See penstock config explain worker_tmp_dir"
        );
        let told = explain_foreign_flag("--limit-request-line").unwrap();
        assert!(told.contains("`limits.target_bytes`"), "{told}");
        // A word of nginx is no option of a command line.
        assert_eq!(explain_foreign_flag("--proxy-pass"), None);
        assert_eq!(explain_foreign_flag("--wrokers"), None);
    }

    #[test]
    fn near_words_are_suggested() {
        let text = unknown_word("client_max_body_sice");
        assert_eq!(
            text,
            "no configuration key `client_max_body_sice`: did you mean `client_max_body_size` (nginx)?"
        );
        assert_eq!(unknown_word("zzzzzzzz"), "no configuration key `zzzzzzzz`");
    }
}
