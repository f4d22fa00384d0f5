//! Settings from files and variables, and what becomes of them in a running engine.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use redrive::{
    CallError, Context, Defaults, Engine, EngineConfig, Failure, Kind, MethodOptions, NewTask, Notify, Persist, Policy,
    Rate, Retryable, Settings, Store, Verdict,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

const GUIDE: &str = include_str!("../../docs/guide/settings.md");

fn parse(toml: &str) -> redrive::Result<Settings> {
    Settings::parse(toml, [].into_iter())
}

fn with(toml: &str, env: &[(&str, &str)]) -> redrive::Result<Settings> {
    Settings::parse(toml, env.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

fn said(wrong: redrive::Result<Settings>) -> String {
    wrong.unwrap_err().to_string()
}

/// Each problem as (field, text).
fn problems(wrong: redrive::Result<Settings>) -> Vec<(String, String)> {
    let redrive::Error::Invalid(problems) = wrong.unwrap_err() else { panic!("not a list of problems") };
    problems.iter().map(|(field, problem)| (field.to_owned(), problem.to_owned())).collect()
}

/// A file in which every field is given and none is as it is built in.
const ALL: &str = r#"
    persist = "always"
    [registry]
    keep_view_for = "5m"
    [registry.nacos]
    servers = ["a:1", "b:2"]
    namespace = "n"
    group = "g"
    service = "s"
    ip = "10.0.0.1"
    username = "u"
    password = "***" # as which every secret is written
    [engine]
    name = "n"
    concurrency = 2
    scan_interval = "3s"
    sweep_interval = "4s"
    beat_interval = "5s"
    lease = "60s"
    margin = "7s"
    prefetch = 8
    grace = "9s"
    [defaults]
    max_attempts = "unlimited"
    max_duration = "1h"
    deadline = 2030-01-01T00:00:00Z
    backoff = { fixed = "3s" }
    jitter = "none"
    timeout = "10s"
    retry_for = ["a"]
    no_retry_for = ["b"]
    success_if = "result.ok"
    on_exhausted = "escalate"
    notify = { failures = 3 }
    max_crashes = 4
    max_retry_after = "1m"
    max_postponed = "2h"
    on_success = "s"
    on_final_failure = "f"
    keep = true
    on_crash = "dead"
    [methods."billing.charge"]
    max_attempts = 9
    persist = "never"
    concurrency = 5
    per_business = 6
    rate = { tasks = 7, per = "8s" }
    [http]
    allow = ["10.1.0.0/16", "fd00::/8"]
    max_redirects = 5
    [targets.billing]
    base_url = "https://billing.example.org/api"
    headers = { Authorization = "***" }
    signing_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" # not as it is written: it would not be one
    concurrency = 9
    rate = { tasks = 10, per = "11s" }
    allow_private = true
    max_attempts = 12
"#;

#[test]
fn every_field_is_read_and_round_trips() {
    let settings = parse(ALL).unwrap();
    let json = serde_json::to_value(&settings).unwrap();
    let mut read_again = serde_json::from_value::<Settings>(json.clone()).unwrap();
    let billing = read_again.targets.get_mut("billing").unwrap();
    assert_eq!(billing.signing_secret, Some("***".into()), "secrets are not written");
    billing.signing_secret.clone_from(&settings.targets["billing"].signing_secret);
    assert_eq!(read_again, settings);

    let built_in = serde_json::to_value(Settings::default()).unwrap();
    for (field, value) in built_in["engine"].as_object().unwrap() {
        assert_ne!(&json["engine"][field], value, "engine.{field} is missing in this test");
    }
    for (field, value) in built_in["registry"]["nacos"].as_object().unwrap() {
        assert_ne!(&json["registry"]["nacos"][field], value, "registry.nacos.{field} is missing in this test");
    }
    let nacos = &settings.registry.nacos;
    assert_eq!((nacos.ip, nacos.username.as_deref()), ("10.0.0.1".parse().ok(), Some("u")));
    let defaults = settings.to_defaults();
    let policy = serde_json::to_value(&*defaults.policy).unwrap(); // only what is not as it is built in
    let fields = policy.as_object().unwrap().len();
    let debug = format!("{:#?}", Policy::default());
    let all =
        debug.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     ") && line.contains(": "));
    assert_eq!(fields, all.count(), "a policy field is missing in this test");
    assert_eq!((defaults.persist, defaults.policy.max_attempts), (Persist::Always, None));
    assert_eq!(defaults.policy.notify, Some(Notify::Failures(3)));

    let charge = &settings.methods["billing.charge"];
    assert_eq!((charge.persist, charge.concurrency, charge.per_business), (Some(Persist::Never), Some(5), Some(6)));
    assert_eq!(charge.rate, Some(Rate { tasks: 7, per: Duration::from_secs(8) }));
    assert_eq!(defaults.policy_for("billing.charge").max_attempts, Some(9));
    assert_eq!(defaults.policy_for("billing.charge").max_crashes, 4);

    assert_eq!((settings.http.allow.len(), settings.http.max_redirects), (2, 5));
    let billing = &settings.targets["billing"];
    assert_eq!((billing.limits().concurrency, billing.allow_private), (Some(9), true));
    assert_eq!(billing.rate, Some(Rate { tasks: 10, per: Duration::from_secs(11) }));
    assert_eq!((billing.base_url.as_str(), billing.signing_keys().len()), ("https://billing.example.org/api", 1));
    assert_eq!(billing.policy.over(Policy::default()).max_attempts, Some(12));
}

#[test]
fn a_target_is_set_by_variables_too_and_its_secrets_are_never_shown() {
    let settings = with(
        "[targets.billing]\nbase_url = 'https://old.example.org'\nheaders = { X-Tenant = 'a' }",
        &[
            ("REDRIVE_TARGETS__BILLING__BASE_URL", "https://billing.example.org"),
            ("REDRIVE_TARGETS__BILLING__HEADERS__AUTHORIZATION", "123456"),
            ("REDRIVE_TARGETS__BILLING__SIGNING_SECRET", "whsec_c2VjcmV0LXNlY3JldA=="),
            ("REDRIVE_TARGETS__BILLING__MAX_ATTEMPTS", "7"),
            ("REDRIVE_HTTP__ALLOW", "['10.0.0.0/8']"),
        ],
    )
    .unwrap();
    let billing = &settings.targets["billing"];
    assert_eq!(billing.base_url, "https://billing.example.org");
    assert_eq!(billing.headers.keys().collect::<Vec<_>>(), ["X-Tenant", "authorization"]);
    assert_eq!(billing.headers["authorization"].reveal(), "123456", "as it was written, and not as a number");
    assert_eq!(billing.policy.over(Policy::default()).max_attempts, Some(7));
    assert!(settings.http.allow[0].contains("10.2.3.4".parse().unwrap()));
    let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
    assert!(!shown.contains("123456") && !shown.contains("c2VjcmV0"), "{shown}");

    let wrong = said(parse(
        "[http]\nmax_redirects = 99\n[targets.a]\nbase_url = 'https://u:hunter2@h'\nmax_attempts = 0\nbase_ur = 1\n[targets.b]",
    ));
    for part in
        ["http.max_redirects", "targets.a.base_url", "targets.a.max_attempts", "base_url?", "targets.b.base_url"]
    {
        assert!(wrong.contains(part), "{part} in {wrong}");
    }
    assert!(wrong.contains("line 4") && !wrong.contains("hunter2"), "{wrong}");
    let network = said(parse("[http]\nallow = ['10.0.0.0/99']"));
    assert!(network.contains("10.1.0.0/16"), "{network}");
}

#[test]
fn targets_hold_from_the_next_start_on() {
    let (old, new) = (parse("").unwrap(), parse("[targets.a]\nbase_url = 'https://a'").unwrap());
    let (held, waiting) = old.followed_by(new);
    assert!(held.targets.is_empty());
    assert!(waiting.iter().any(|field| field == "targets.a.base_url"), "{waiting:?}");
}

#[test]
fn the_guide_shows_every_field_with_its_built_in_value() {
    let file = GUIDE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let guide = parse(file).unwrap();
    let built_in = Settings::default();
    assert_eq!(
        guide.differences(&built_in).iter().filter(|f| f.starts_with("engine")).collect::<Vec<_>>(),
        ["engine.name"]
    );
    assert_eq!(
        guide.differences(&built_in).iter().filter(|f| f.starts_with("registry")).collect::<Vec<_>>(),
        ["registry.nacos.ip", "registry.nacos.password", "registry.nacos.username"]
    );
    assert_eq!((guide.database.as_str(), guide.persist), (built_in.database.as_str(), built_in.persist));
    assert_eq!(*guide.to_defaults().policy, Policy::default());

    let (guide, all) = (serde_json::to_value(guide).unwrap(), serde_json::to_value(parse(ALL).unwrap()).unwrap());
    let names = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&guide["defaults"]), names(&all["defaults"]));
    for field in names(&all["targets"]["billing"]) {
        assert!(file.contains(&format!("\n{field} = ")), "targets.billing.{field} is not in the guide");
    }
    assert_eq!(guide["http"], serde_json::to_value(&built_in.http).unwrap());
    for field in ["persist", "concurrency", "per_business", "rate"] {
        assert!(guide["methods"]["charge"].get(field).is_some(), "methods.charge.{field}");
    }
    for field in names(&guide["engine"]) {
        assert!(file.contains(&format!("\n{field} = ")), "engine.{field} is not in the guide");
    }
}

#[test]
fn a_registry_is_set_by_variables_too_and_what_it_lacks_is_said() {
    let settings = with(
        "[registry]\nkeep_view_for = '20s'",
        &[
            ("REDRIVE_REGISTRY__KEEP_VIEW_FOR", "10s"),
            ("REDRIVE_REGISTRY__NACOS__SERVERS", "['n1:8848', 'n2:8848']"),
            ("REDRIVE_REGISTRY__NACOS__USERNAME", "007"),
            ("REDRIVE_REGISTRY__NACOS__PASSWORD", "1234"),
        ],
    )
    .unwrap();
    assert_eq!(settings.registry.keep_view_for, Duration::from_secs(10));
    assert_eq!(settings.registry.nacos.servers, ["n1:8848", "n2:8848"]);
    assert_eq!(settings.registry.nacos.username.as_deref(), Some("007"), "as it was written, and not as a number");
    let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
    assert!(!shown.contains("1234"), "{shown}");

    let wrong = said(parse("[registry]\nkeep_view_for = '0s'\n[registry.nacos]\nservers = []\nusername = 'u'"));
    for field in ["registry.keep_view_for", "registry.nacos.servers", "registry.nacos.username"] {
        assert!(wrong.contains(field), "{field} in {wrong}");
    }
    let unknown = said(with("", &[("REDRIVE_REGISTRY__NACOS__SERVER", "x")]));
    assert!(unknown.contains("is it REDRIVE_REGISTRY__NACOS__SERVERS"), "{unknown}");
    let nacos = parse("[registry]\nkind = 'nacos'");
    if cfg!(feature = "nacos") {
        nacos.unwrap();
    } else {
        let without = said(nacos);
        assert!(without.contains("registry.kind") && without.contains("cargo feature"), "{without}");
    }
}

#[test]
fn words_for_none_undo_what_is_below() {
    let undone = "max_attempts = 'unlimited'\nmax_duration = 'unlimited'\ndeadline = 'unlimited'\ntimeout = 'unlimited'\n\
                  notify = 'never'\nsuccess_if = ''\non_success = ''\non_final_failure = ''\n";
    let settings = parse(&format!("{ALL}\n[methods.m]\n{undone}")).unwrap();
    let policy = settings.to_defaults().policy_for("m");
    assert_eq!((policy.max_attempts, policy.max_duration, policy.deadline, policy.timeout), (None, None, None, None));
    assert_eq!((policy.notify, &policy.success_if), (None, &None));
    assert_eq!((&policy.on_success, &policy.on_final_failure), (&None, &None));
    assert_eq!(policy.max_crashes, 4, "the others stay");
}

#[test]
fn unknown_names_are_refused_with_their_place_and_near_names() {
    let file = "databse = 'x'\n[engine]\nscan_intervall = '1s'\n[defaults]\nmax_attemps = 1\n\
                [methods.m]\nconcurency = 1\n[methods.'a.b']\nnonsense = 1\n";
    let found = problems(parse(file));
    for (field, near, line) in [
        ("databse", "database", 1),
        ("engine.scan_intervall", "scan_interval", 3),
        ("defaults.max_attemps", "max_attempts", 5),
        ("methods.m.concurency", "concurrency", 7),
        ("methods.\"a.b\".nonsense", "retry_for", 9),
    ] {
        let (_, text) = found.iter().find(|(f, _)| f == field).unwrap_or_else(|| panic!("{field}: {found:?}"));
        assert!(text.contains(near) && text.ends_with(&format!("(redrive.toml, line {line})")), "{text}");
    }
    assert_eq!(found.len(), 5);
    assert!(serde_json::from_str::<Settings>(r#"{ "defaults": { "max_attemps": 1 } }"#).is_err());
    assert!(serde_json::from_str::<Settings>(r#"{ "methods": { "m": { "concurency": 1 } } }"#).is_err());
    assert!(serde_json::from_str::<Settings>(r#"{ "nonsense": 1 }"#).is_err());
}

#[test]
fn unknown_variables_are_refused_with_near_names_unless_they_are_not_settings() {
    for (name, near) in [
        ("REDRIVE_DATABSE", "REDRIVE_DATABASE"),
        ("REDRIVE_ENGINE_CONCURRENCY", "REDRIVE_ENGINE__CONCURRENCY"),
        ("REDRIVE_DEFAULTS__MAX_ATTEMPS", "REDRIVE_DEFAULTS__MAX_ATTEMPTS"),
        ("REDRIVE_METHODS__M__NONSENSE", "REDRIVE_PERSIST"),
        ("REDRIVE_ENGINE", "REDRIVE_ENGINE__NAME"),
        ("REDRIVE_", "REDRIVE_DATABASE"),
        ("REDRIVE_DEFAULTS____", "REDRIVE_DATABASE"),
        ("REDRIVE_TESTS", "REDRIVE_DATABASE"),
    ] {
        let found = problems(with("", &[(name, "secret")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == name && found[0].1.contains(near) && !found[0].1.contains("secret"), "{found:?}");
    }
    let others = [("REDRIVE_TEST_POSTGRES", "x"), ("REDRIVE_LOG", "debug"), ("PATH", "/bin"), ("XREDRIVE_A", "1")];
    assert_eq!(with("", &others).unwrap(), Settings::default());
    let endless = format!("REDRIVE_DEFAULTS__BACKOFF{}", "__A".repeat(100_000));
    assert!(with("", &[(&endless, "1")]).is_err());
}

#[test]
fn variables_win_over_the_file_field_by_field() {
    let settings = with(
        ALL,
        &[
            ("REDRIVE_DATABASE", "postgres://me:secret@h/d"),
            ("REDRIVE_PERSIST", "manual"),
            ("REDRIVE_ENGINE__CONCURRENCY", "77"),
            ("REDRIVE_ENGINE__SCAN_INTERVAL", "250ms"),
            ("REDRIVE_ENGINE__NAME", "42"), // text, though it looks like a number
            ("REDRIVE_DEFAULTS__BACKOFF__LINEAR__INITIAL", "1s"),
            ("REDRIVE_DEFAULTS__BACKOFF__LINEAR__MAX", "9s"),
            ("REDRIVE_DEFAULTS__RETRY_FOR", r#"["x", "y"]"#),
            ("REDRIVE_DEFAULTS__DEADLINE", "2031-01-01T00:00:00Z"),
            ("REDRIVE_METHODS__CHARGE__TIMEOUT", "4s"),
            ("REDRIVE_METHODS__CHARGE__RATE__TASKS", "5"),
            ("REDRIVE_METHODS__CHARGE__RATE__PER", "1m"),
        ],
    )
    .unwrap();
    assert_eq!(settings.database.as_str(), "postgres://me:secret@h/d");
    assert_eq!((settings.persist, settings.engine.concurrency, &*settings.engine.name), (Persist::Manual, 77, "42"));
    assert_eq!(settings.engine.scan_interval, Duration::from_millis(250));
    assert_eq!(settings.engine.sweep_interval, Duration::from_secs(4), "the file's");
    let defaults = settings.to_defaults();
    assert_eq!(defaults.policy.backoff, redrive::Backoff::linear(Duration::from_secs(1), Duration::from_secs(9)));
    assert_eq!(defaults.policy.retry_for, [Kind::of("x"), Kind::of("y")]);
    assert_eq!(defaults.policy.max_crashes, 4, "the file's");
    assert_eq!(defaults.policy_for("charge").timeout, Some(Duration::from_secs(4)));
    assert_eq!(settings.methods["charge"].rate, Some(Rate { tasks: 5, per: Duration::from_secs(60) }));
    let both = [("REDRIVE_DEFAULTS__BACKOFF", "{ fixed = '1s' }"), ("REDRIVE_DEFAULTS__BACKOFF__FIXED", "1s")];
    assert!(said(with("", &both)).contains("beside a variable that is a part of it"));
}

#[test]
fn all_problems_are_told_at_once() {
    let file = "persist = 'often'\n[engine]\nconcurrency = 0\nlease = '1s'\n[defaults]\nmax_attempts = 0\ntimeout = 5\n\
                backoff = { exponential = { initial = '1h' } }\n[methods.m]\nconcurrency = 0\nrate = { tasks = 1 }\nkeep = 'x'";
    let found = problems(with(file, &[("REDRIVE_DEFAULTS__MAX_CRASHES", "0"), ("REDRIVE_NONSENSE", "1")]));
    let mut fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    fields.sort_unstable();
    let expected = [
        "REDRIVE_NONSENSE",
        "defaults.backoff.max",
        "defaults.max_attempts",
        "defaults.max_crashes",
        "defaults.timeout",
        "engine.concurrency",
        "engine.lease",
        "methods.m",
        "methods.m.keep",
        "methods.m.rate",
        "persist",
    ];
    assert_eq!(fields, expected, "{found:#?}");
    let place = |field: &str| found.iter().find(|(f, _)| f == field).map(|(_, text)| text.rsplit('(').next().unwrap());
    assert_eq!(place("engine.lease"), Some("redrive.toml, line 4)"));
    assert_eq!(place("defaults.backoff.max"), Some("redrive.toml, line 8)"));
    assert_eq!(place("defaults.max_crashes"), Some("REDRIVE_DEFAULTS__MAX_CRASHES)"));

    let found = problems(parse("a = \n[engine]\nb = 'x\nc = 1 1\n"));
    assert!(found.len() > 1 && found[0].0 == "redrive.toml, line 1", "{found:?}");
    assert!(said(parse("engine = 5")).contains("must be a table"));
    assert!(said(parse("[defaults]\njitter = { proportional = nan }")).contains("not finite"));
    assert!(said(parse("[engine]\nconcurrency = 99999999999999999999")).contains("too great"));
}

#[test]
fn secrets_are_in_no_text() {
    let url = "postgres://me:\"hunter2 @h/d?password=hunter2";
    let settings = parse(&format!("database = '{url}'")).unwrap();
    let shown = [
        format!("{settings:?} {settings:#?}"),
        format!("{} {:?}", settings.database, settings.database),
        serde_json::to_string(&settings).unwrap(),
    ];
    assert!(shown.iter().all(|text| !text.contains("hunter2")), "{shown:?}");
    assert_eq!(settings.database.to_string(), "postgres:***");
    for wrong in [
        format!("database = '{url}"),
        format!("database = '{url}' x"),
        format!("databse = '{url}'"),
        format!("persist = '{url}'"),
        format!("engine = '{url}'"),
        format!("[database]\nurl = '{url}'"),
        format!("database = ['{url}']"),
        format!("[defaults]\ntimeout = '{url}'"),
        format!("[defaults]\nbackoff = '{url}'"),
        format!("[defaults]\nmax_attempts = '{url}'"),
        format!("[methods.m]\nrate = '{url}'"),
        format!("[engine]\nscan_interval = '{url}'"),
        format!("[engine]\nconcurrency = '{url}'"),
    ] {
        let said = said(parse(&wrong));
        assert!(!said.contains("hunter2"), "{wrong}: {said}");
    }
    let said = said(with("", &[("REDRIVE_DATABASE", url), ("REDRIVE_PERSIST", url)]));
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_file_is_named_in_what_is_wrong_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    assert!(said(Settings::load(Some(&path))).contains("mine.toml: cannot be read"));
    std::fs::write(&path, "\n\npersist = 1").unwrap();
    assert!(said(Settings::load(Some(&path))).contains("mine.toml, line 3"));
    std::fs::write(&path, "\u{feff}persist = 'always'\r\n[engine]\r\nconcurrency = 3").unwrap();
    assert_eq!(Settings::load(Some(&path)).unwrap().engine.concurrency, 3);
}

/// Lines that are almost settings.
fn any_file() -> impl Strategy<Value = String> {
    let name =
        prop_oneof!["database|engine|persist|defaults|methods|backoff|rate|timeout|max_attempts", "[a-z\"'.]{0,8}"];
    let value = prop_oneof![
        Just("'5s'".to_owned()),
        "-?[0-9_.e]{1,25}",
        "\\{ ?[a-z]{1,9} = ('1s'|1) ?\\}",
        "\\[\\]|\\[\\[\\]|nan|inf|true",
        "[\\x00-\\x7f]{0,12}"
    ];
    let line = (name, value, 0..3u8).prop_map(|(name, value, sort)| match sort {
        0 => format!("[{name}]"),
        1 => format!("[methods.{name}]"),
        _ => format!("{name} = {value}"),
    });
    proptest::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_input_makes_parsing_panic(
        file in prop_oneof![any_file(), "\\PC{0,200}", proptest::string::string_regex("(?s).{0,100}").unwrap()],
        names in proptest::collection::vec("REDRIVE_(ENGINE|DEFAULTS|METHODS|[A-Z_]{0,9})?(__[A-Z_é]{0,12}){0,7}", 0..4),
        values in proptest::collection::vec("\\PC{0,20}", 4),
    ) {
        if let Err(e) = Settings::parse(&file, names.into_iter().zip(values)) {
            prop_assert!(!e.to_string().is_empty());
        }
    }

    #[test]
    fn whatever_is_read_is_valid_and_round_trips(file in any_file()) {
        if let Ok(settings) = parse(&file) {
            settings.validate().unwrap();
            settings.to_defaults().policy.validate().unwrap();
            let json = serde_json::to_string(&settings).unwrap();
            let mut again: Settings = serde_json::from_str(&json).unwrap();
            again.database = settings.database.clone(); // which is not written
            prop_assert_eq!(again, settings);
        }
    }
}

/// A call that is always too busy.
#[derive(Serialize, Deserialize)]
struct Busy(u32);

impl Retryable for Busy {
    const METHOD: &'static str = "busy";
    type Output = ();
    type Error = std::io::Error;

    async fn execute(&self, _: &Context<'_>) -> Result<(), std::io::Error> {
        Err(std::io::Error::other("too busy"))
    }

    fn policy(&self, defaults: Policy) -> Policy {
        Policy { max_attempts: Some(2), ..defaults }
    }

    fn classify(&self, error: &std::io::Error) -> Verdict {
        Verdict::Failed(Failure::retry(Kind::of("busy"), error.to_string()))
    }
}

async fn memory() -> Store {
    Store::open("sqlite::memory:").await.unwrap()
}

/// The policy that a new task of a method gets.
async fn policy_of_new(engine: &Engine, method: &str) -> Arc<Policy> {
    let task = engine.enqueue(NewTask::new(method, &0).unwrap()).await.unwrap();
    engine.get(task.id).await.unwrap().unwrap().policy.clone()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("within two minutes")
}

#[tokio::test]
async fn new_settings_hold_for_new_tasks_and_calls() {
    let engine = Engine::builder(memory().await).handler::<Busy>().start().await.unwrap();
    assert_eq!(policy_of_new(&engine, "mail").await.max_attempts, Some(16));
    assert!(matches!(engine.call(Busy(1)).await, Err(CallError::Deferred { .. })));

    let new = "[defaults]\nmax_attempts = 5\nno_retry_for = ['busy']\n[methods.other]\nmax_attempts = 6\n\
               [methods.busy]\nmax_attempts = 7\n";
    assert_eq!(engine.apply_settings(parse(new).unwrap()).unwrap(), [""; 0]);
    assert_eq!(policy_of_new(&engine, "letters").await.max_attempts, Some(5));
    assert_eq!(policy_of_new(&engine, "other").await.max_attempts, Some(6));
    assert!(matches!(engine.call(Busy(2)).await, Err(CallError::Rejected { .. })), "its kind is in the list");

    let new = "[defaults]\nno_retry_for = ['busy']\n[methods.busy]\nno_retry_for = []\nmax_attempts = 7\n";
    engine.apply_settings(parse(new).unwrap()).unwrap();
    assert_eq!(policy_of_new(&engine, "parcels").await.max_attempts, Some(16));
    let Err(CallError::Deferred { task_id, .. }) = engine.call(Busy(3)).await else { panic!("its method's list wins") };
    let policy = engine.get(task_id).await.unwrap().unwrap().policy.clone();
    assert_eq!(policy.max_attempts, Some(7), "the settings win over the code");
    engine.stop().await;
}

#[tokio::test]
async fn the_settings_say_when_calls_of_a_method_are_written_down() {
    let engine = Engine::builder(memory().await).handler::<Busy>().start().await.unwrap();
    engine.apply_settings(parse("[methods.busy]\npersist = 'manual'").unwrap()).unwrap();
    assert!(matches!(engine.call(Busy(1)).await, Err(CallError::Failed { .. })), "not written");
    engine.stop().await;
}

#[tokio::test]
async fn source_2_the_settings_have_a_strategy_and_a_list_of_errors_for_all_calls() {
    let manual = parse("persist = 'manual'").unwrap();
    let engine = Engine::builder(memory().await).settings(manual).handler::<Busy>().start().await.unwrap();
    assert!(matches!(engine.call(Busy(1)).await, Err(CallError::Failed { .. })), "not written");
    engine.apply_settings(parse("persist = 'on_failure'").unwrap()).unwrap();
    assert!(matches!(engine.call(Busy(2)).await, Err(CallError::Deferred { .. })));
    engine.apply_settings(parse("[defaults]\nretry_for = ['timeout']").unwrap()).unwrap();
    assert!(matches!(engine.call(Busy(3)).await, Err(CallError::Rejected { .. })), "busy is not in the list");
    engine.apply_settings(parse("[defaults]\nretry_for = ['timeout', 'busy']").unwrap()).unwrap();
    assert!(matches!(engine.call(Busy(4)).await, Err(CallError::Deferred { .. })));
    engine.stop().await;
}

#[tokio::test]
async fn a_new_scan_interval_holds_at_once() {
    let (ran, mut seen) = mpsc::unbounded_channel();
    let store = memory().await;
    let slow = parse("[engine]\nscan_interval = '10h'\nsweep_interval = '10h'").unwrap();
    let handler = move |_: Context, n: u32| {
        let sent = ran.send(n);
        async move { sent.map_err(Verdict::from) }
    };
    let engine = Engine::builder(store.clone()).settings(slow).register("m", handler).start().await.unwrap();
    assert_eq!(engine.settings().engine.scan_interval, Duration::from_secs(36_000));
    engine.apply_settings(parse("[engine]\nscan_interval = '20ms'").unwrap()).unwrap();
    for n in 0..3 {
        // Nobody tells the engine of these: only a scan finds them.
        store.insert(vec![NewTask::new("m", &n).unwrap()], store.now().await.unwrap()).await.unwrap();
        assert_eq!(soon(seen.recv()).await, Some(n));
    }
    engine.stop().await;
}

#[tokio::test]
async fn new_limits_of_a_method_hold_at_once() {
    let (ran, mut seen) = mpsc::unbounded_channel();
    let handler = move |cx: Context<'static>, n: u32| {
        let sent = ran.send(n);
        async move {
            cx.cancelled().await;
            sent.map_err(Verdict::from)
        }
    };
    let of = |n| parse(&format!("[engine]\ngrace = '1ms'\n[methods.m]\nconcurrency = {n}")).unwrap();
    let options = MethodOptions::default().concurrency(9);
    let engine = Engine::builder(memory().await).settings(of(1)).register_with("m", options, handler);
    let engine = engine.start().await.unwrap();
    for n in 0..3 {
        engine.enqueue(NewTask::new("m", &n).unwrap()).await.unwrap();
    }
    assert_eq!((soon(seen.recv()).await, seen.try_recv().ok()), (Some(0), None));
    engine.apply_settings(of(2)).unwrap();
    soon(seen.recv()).await;
    assert_eq!((engine.stats().executing, seen.try_recv().ok()), (2, None));
    let mut other = of(2);
    other.methods.get_mut("m").unwrap().per_business = Some(1);
    assert_eq!(engine.apply_settings(other).unwrap(), ["methods.m.per_business"]);
    engine.stop().await;
}

#[tokio::test]
async fn what_is_not_valid_changes_nothing_and_what_cannot_change_is_named() {
    let engine = Engine::builder(memory().await).start().await.unwrap();
    let before = engine.settings();
    let mut wrong = (*before).clone();
    wrong.defaults.set("max_attempts", 3).unwrap();
    wrong.engine.lease = Duration::ZERO;
    assert!(engine.apply_settings(wrong).unwrap_err().to_string().contains("engine.lease"));
    assert_eq!((engine.settings(), engine.defaults().policy.max_attempts), (before.clone(), Some(16)));

    let mut new = (*before).clone();
    new.database = "sqlite://elsewhere.db".into();
    new.engine.lease = Duration::from_secs(60);
    new.engine.scan_interval = Duration::from_secs(1);
    for _ in 0..2 {
        assert_eq!(engine.apply_settings(new.clone()).unwrap(), ["database", "engine.lease"]);
    }
    assert_eq!(before.differences(&engine.settings()), ["engine.scan_interval"]);
    engine.stop().await;
}

#[tokio::test]
async fn what_the_program_says_on_the_builder_wins() {
    let file =
        "persist = 'always'\n[engine]\nconcurrency = 3\ngrace = '1s'\n[defaults]\nmax_attempts = 3\nmax_crashes = 4";
    let mut config = EngineConfig::default();
    config.concurrency = 2;
    let mut defaults = Defaults::default();
    defaults.policy = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
    let builder = Engine::builder(memory().await).config(config).defaults(defaults).settings(parse(file).unwrap());
    let engine = builder.start().await.unwrap();
    let (settings, defaults) = (engine.settings(), engine.defaults());
    assert_eq!((settings.engine.concurrency, settings.engine.grace), (2, Duration::from_secs(1)));
    assert_eq!((defaults.policy.max_attempts, defaults.policy.max_crashes), (Some(2), 4));
    assert_eq!(defaults.persist, Persist::Always);
    engine.stop().await;
}

/// Lines of the log, as they are written.
#[derive(Clone)]
struct Log(mpsc::UnboundedSender<String>, Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut line = self.1.lock().unwrap();
        line.extend_from_slice(bytes);
        if line.ends_with(b"\n") {
            _ = self.0.send(String::from_utf8_lossy(&std::mem::take(&mut *line)).into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The next line about settings.
async fn next(lines: &mut mpsc::UnboundedReceiver<String>) -> String {
    loop {
        let line = soon(lines.recv()).await.unwrap();
        if line.contains("settings") {
            return line;
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_running_engine_follows_its_file() {
    let (sender, mut lines) = mpsc::unbounded_channel();
    let log = Log(sender, Arc::default());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish();
    // While there is only one who listens, what another thread comes to first is silent ever after.
    std::mem::forget(tracing::Dispatch::new(tracing_subscriber::registry()));
    let _guard = tracing::subscriber::set_default(subscriber);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redrive.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();

    write("[defaults]\nmax_attempts = 3");
    let mut config = EngineConfig::default();
    config.concurrency = 2;
    let engine = Engine::builder(memory().await).config(config).watch(&path).start().await.unwrap();
    assert_eq!(policy_of_new(&engine, "a").await.max_attempts, Some(3));

    write("[engine]\nscan_interval = '1s'\nlease = '1h'\nconcurrency = 9\n[defaults]\nmax_attempts = 4");
    let line = next(&mut lines).await;
    assert!(
        line.contains("settings applied") && line.contains("defaults.max_attempts, engine.scan_interval"),
        "{line}"
    );
    let line = next(&mut lines).await;
    assert!(
        line.contains("restart") && line.contains("\"engine.lease\""),
        "what the program says is no change: {line}"
    );
    assert_eq!(policy_of_new(&engine, "b").await.max_attempts, Some(4));
    assert_eq!(engine.settings().engine.scan_interval, Duration::from_secs(1));

    write("persist = 'often'\n[defaults]\nmax_attempts = 0");
    let line = next(&mut lines).await;
    assert!(line.contains("ERROR") && line.contains("persist") && line.contains("max_attempts"), "{line}");
    assert_eq!(policy_of_new(&engine, "c").await.max_attempts, Some(4), "the last good ones hold");

    write("[defaults]\nmax_attempts = 5");
    let line = next(&mut lines).await; // and not the same problems again
    assert!(line.contains("settings applied") && line.contains("defaults.max_attempts"), "{line}");
    assert_eq!(policy_of_new(&engine, "d").await.max_attempts, Some(5));
    engine.stop().await;

    write("nonsense = 1");
    let refused = Engine::builder(memory().await).watch(&path).start().await.unwrap_err();
    assert!(refused.to_string().contains("redrive.toml, line 1"), "{refused}");
}

#[test]
fn keys_for_params_are_settings_and_stay_secret() {
    let key = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=";
    let env = [("REDRIVE_ENCRYPTION__KEYS__2026", key)];
    let settings = with("[encryption]\ncurrent = '2026'\nall = true", &env).unwrap();
    let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
    assert!(shown.contains("2026") && !shown.contains(key), "{shown}");
    assert!(settings.store_options().unwrap().keyring.is_some());
    assert!(Settings::default().store_options().unwrap().keyring.is_none());

    let said = said(parse("[encryption]\ncurrent = '2027'\n[encryption.keys]\n2026 = 'short'"));
    assert!(said.contains("encryption.current: there is no key \"2027\"") && !said.contains("short"), "{said}");
}

#[cfg(feature = "notify")]
#[test]
fn channels_are_settings_with_their_secrets_in_variables() {
    let file = "[notify.channels.ops]\ntype = 'mail'\nhost = 'smtp.example.org'\nuser = 'redrive'\n\
                from = 'a@example.org'\nto = ['b@example.org']";
    let settings = with(file, &[("REDRIVE_NOTIFY__CHANNELS__OPS__PASSWORD", "90210")]).unwrap();
    assert!(!format!("{settings:?}").contains("90210"));
    let redrive::notify::Channel::Mail(mail) = &settings.notify.as_ref().unwrap().channels["ops"] else { panic!() };
    assert_eq!(mail.password.as_ref().map(|p| p.reveal().to_owned()).as_deref(), Some("90210"));
    let (_, waiting) = Settings::default().followed_by(settings);
    assert!(waiting.iter().any(|field| field.starts_with("notify")), "{waiting:?}");
    assert!(said(with("[notify.channels.ops]\ntype = 'pigeon'", &[])).contains("notify"));
}
