//! Words of frameworks that `config explain` is asked for: what the server does for them.
//!
//! # Invariants
//!
//! - Every key that an answer names exists (`tests`).

/// Words, the answer, and the keys whose documentation follows.
struct FrameworkAnswer {
    words: &'static [&'static str],
    answer: &'static str,
    keys: &'static [&'static str],
}

const ANSWERS: &[FrameworkAnswer] = &[
    FrameworkAnswer {
        words: &[
            "django",
            "manage.py",
            "wsgi.py",
            "asgi.py",
            "django_settings_module",
        ],
        answer: "Django: without a configuration file `penstock serve` finds the project by its \
                 manage.py, reads its settings and serves STATIC_ROOT and MEDIA_ROOT. `penstock \
                 init` writes that down. Commands in its environment: penstock run manage.py migrate",
        keys: &["apps.NAME.entry", "apps.NAME.release_command"],
    },
    FrameworkAnswer {
        words: &[
            "collectstatic",
            "static_root",
            "static_url",
            "staticfiles",
            "whitenoise",
            "media_root",
            "media_url",
        ],
        answer: "Django: collect static files by penstock run manage.py collectstatic. Without a \
                 configuration file STATIC_ROOT and MEDIA_ROOT of the settings are served. With one, \
                 a route does: path = \"/static/*\", files = { root = \"staticfiles\" }, \
                 rewrite = { strip_prefix = \"/static\" }",
        keys: &["sites.routes.files", "sites.routes.rewrite.strip_prefix"],
    },
    FrameworkAnswer {
        words: &["celery_worker", "celery_beat", "celeryd"],
        answer: "Celery: a job that is kept running beside the application: [jobs.celery] with \
                 command = \"celery -A MODULE worker\"",
        keys: &["jobs.NAME.command", "jobs.NAME.stop_timeout"],
    },
    FrameworkAnswer {
        words: &["migrate", "migrations"],
        answer: "Migrations: `release_command` runs them before new code serves; by hand: penstock \
                 run manage.py migrate",
        keys: &["apps.NAME.release_command"],
    },
];

/// The answer for a word of a framework, with the documentation of its keys.
pub(super) fn explain(word: &str) -> Option<String> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let found = ANSWERS
        .iter()
        .find(|it| it.words.contains(&word.as_str()))?;
    let mut text = format!("{}\n", found.answer);
    for key in found.keys {
        if let Some(meaning) = penstock_config::explain_key(key) {
            text.push('\n');
            text.push_str(&meaning);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_one_answer_whose_keys_exist() {
        let mut seen = std::collections::BTreeSet::new();
        for FrameworkAnswer { words, keys, .. } in ANSWERS {
            for word in *words {
                assert!(seen.insert(word), "{word}");
                assert!(
                    penstock_config::explain_key(word).is_none(),
                    "{word} is a key"
                );
                assert!(explain(word).is_some(), "{word}");
            }
            for key in *keys {
                assert!(penstock_config::explain_key(key).is_some(), "{key}");
            }
        }
        let told = explain("STATIC_ROOT").unwrap();
        assert!(
            told.contains("penstock run manage.py collectstatic"),
            "{told}"
        );
        assert_eq!(explain("frobnicate"), None);
    }
}
