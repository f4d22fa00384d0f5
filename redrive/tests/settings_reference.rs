//! docs/operate/settings.md is made from what the source says of each field. With `REDRIVE_TEST_WRITE=1` it is written anew; else it
//! must be as it would be written.

use std::fmt::Write as _;
use std::path::Path;

/// A section of the file: its heading, a sentence, the source, and the struct in it.
const SECTIONS: &[(&str, &str, &str, &str)] = &[
    ("", "At the top of the file.", "src/settings.rs", "Settings"),
    ("engine", "How this node works.", "src/engine/config.rs", "EngineConfig"),
    ("defaults", "The policy of calls and tasks that do not say otherwise.", "src/policy.rs", "Policy"),
    (
        "methods.NAME",
        "What is different for a method: any field of `[defaults]`, and these.",
        "src/settings.rs",
        "MethodSettings",
    ),
    ("retention", "How long things are kept.", "src/store/retention.rs", "Retention"),
    ("registry", "How nodes find each other.", "src/registry/config.rs", "RegistryConfig"),
    ("registry.nacos", "Where Nacos is.", "src/registry/config.rs", "NacosConfig"),
    ("encryption", "The keys for params that are encrypted.", "src/settings.rs", "EncryptionSettings"),
    ("notify", "How people are told.", "src/notify/mod.rs", "NotifyConfig"),
    ("notify.channels.NAME", "A channel with `type = \"mail\"`.", "src/notify/mail.rs", "Mail"),
    ("notify.channels.NAME", "A channel with `type = \"webhook\"`.", "src/notify/webhook.rs", "Webhook"),
    ("server", "How `redrive serve` answers.", "src/settings/server.rs", "ServerSettings"),
    ("http", "What holds for all HTTP tasks.", "src/settings/targets.rs", "HttpSettings"),
    (
        "http.gate",
        "The circuit breaker of each host; the same below `[targets.NAME.gate]` and `[methods.NAME.gate]`. See [gates](gates.md).",
        "src/gate.rs",
        "GateConfig",
    ),
    (
        "http.gate.breaker",
        "When a gate opens, and what it takes to close again.",
        "src/resilience/config.rs",
        "BreakerConfig",
    ),
    (
        "targets.NAME",
        "A service that HTTP tasks name: any field of `[defaults]`, and these.",
        "src/settings/targets.rs",
        "TargetSettings",
    ),
    ("guard", "What holds for all guarded tables.", "src/settings/guards.rs", "GuardSettings"),
    (
        "guards.NAME",
        "A business table whose failed rows are retried. See [guards](guards.md).",
        "src/settings/guards.rs",
        "GuardedTableSettings",
    ),
];

struct Field {
    name: String,
    said: String,
}

/// The public fields of a struct, with what is said of them.
fn fields(source: &str, name: &str) -> Vec<Field> {
    let begin = format!("pub struct {name} {{");
    let lines = source.lines().skip_while(|line| *line != begin).skip(1).take_while(|line| *line != "}");
    let (mut all, mut said) = (Vec::new(), String::new());
    for line in lines.map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            said += text;
        } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|line| line.split_once(':')) {
            all.push(Field { name: field.to_owned(), said: std::mem::take(&mut said).trim().to_owned() });
        }
    }
    assert!(!all.is_empty(), "there is no struct {name} with fields");
    all
}

/// Links of rustdoc are no links here.
fn plain(said: &str) -> String {
    let mut out = String::new();
    let mut rest = said;
    while let Some((before, after)) = rest.split_once("](crate::") {
        let (text, link) = (before, after.split_once(')').map_or("", |(_, rest)| rest));
        out += text;
        out = out.rsplit_once('[').map_or(out.clone(), |(a, b)| format!("{a}{b}"));
        rest = link;
    }
    (out + rest).replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

/// `said` without its last sentence, and what that says the default is.
fn split_default(path: &str, said: &str) -> (String, String) {
    let (before, default) = said.rsplit_once("Default: ").unwrap_or_else(|| panic!("{path} does not say its default"));
    (before.trim().to_owned(), default.trim().trim_end_matches('.').to_owned())
}

fn reference() -> String {
    let mut out = String::from(
        "# Settings reference\n\nEvery setting, as the source describes it. How files, variables and what people set at run time go \
         together is in the [guide to settings](../guide/settings.md). A variable's name is `REDRIVE_` and the path in capitals, \
         with two underscores between the levels: `REDRIVE_ENGINE__LEASE`.\n",
    );
    for (section, sentence, file, name) in SECTIONS {
        let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let title = if section.is_empty() { "The top level".into() } else { format!("`[{section}]`") };
        write!(out, "\n## {title}\n\n{sentence}\n\n| setting | what it is | built in |\n| --- | --- | --- |\n")
            .unwrap();
        for field in fields(&source, name).iter().filter(|field| field.name != "policy") {
            let path = [section, &*field.name].join(".");
            let (said, default) = split_default(&path, &plain(&field.said));
            writeln!(out, "| `{}` | {said} | {default} |", field.name).unwrap();
        }
    }
    out
}

#[test]
fn the_reference_is_as_the_source_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate/settings.md");
    let made = reference();
    if std::env::var_os("REDRIVE_TEST_WRITE").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = made.lines().zip(written.lines()).find(|(made, written)| made != written);
    assert!(
        made == written,
        "run this test with REDRIVE_TEST_WRITE=1 to write it anew; the first difference: {differs:?}"
    );
}

/// One that can is known, but wants another value than this one. What is a section is said field by field, but for gates: they are one
/// value.
#[test]
fn every_setting_can_be_said_by_a_variable() {
    let sections = || SECTIONS.iter().filter(|(section, ..)| !section.starts_with("http.gate"));
    let is_section = |path: &str| {
        let below = format!("{path}.");
        sections().any(|(section, ..)| *section == path || section.starts_with(&below))
    };
    let is_said_below = |path: &str| is_section(path) || path.ends_with(".policy") || path == "encryption.keys";
    for (section, _, file, name) in sections() {
        let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let path = |field: &Field| format!("{section}.{}", field.name).trim_start_matches('.').to_owned();
        for path in fields(&source, name).iter().map(path).filter(|path| !is_said_below(path)) {
            let variable = format!("REDRIVE_{}", path.to_uppercase().replace('.', "__"));
            let said = redrive::Settings::parse("", std::iter::once((variable.clone(), "?".to_owned())));
            let said = said.map_or_else(|e| e.to_string(), |_| String::new());
            assert!(!said.contains("is not a setting"), "{variable}: {said}");
        }
    }
}

#[test]
fn every_top_field_has_its_section() {
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/settings.rs")).unwrap();
    for field in fields(&source, "Settings").iter().filter(|f| !["database", "persist"].contains(&&*f.name)) {
        assert!(SECTIONS.iter().any(|(section, ..)| section.split('.').next() == Some(&*field.name)), "{}", field.name);
    }
}
