//! Settings: `redrive.toml`, the environment, the builder.
//!
//! Later sources win, field by field: what is built in, then the file, then variables (`REDRIVE_ENGINE__CONCURRENCY`), then
//! what the program says on its [`Builder`](crate::Builder). A name that is not known is an error, and all that is wrong is
//! said at once, with its place.
//!
//! | file | what |
//! | --- | --- |
//! | `sources` | the file and the variables as one tree that remembers where each field was said |
//! | `read` | the tree as [`Settings`], or all that is wrong with it |
//! | `patch` | policy fields that are given |
//! | `defaults` | what the settings mean for one call or task |
//! | `hot` | single fields that people change while nodes run |
//! | `targets`, `server`, `guards` | where HTTP tasks go, how the server answers, which tables it guards |
//! | `watch` | notices that the file has changed |
//!
//! Some fields hold from the moment they are changed, others from the next start ([`Settings::followed_by`] knows which).

mod defaults;
mod guards;
mod hot;
mod patch;
mod read;
mod server;
mod sources;
mod targets;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::crypt::Keyring;
use crate::engine::{EngineConfig, MethodOptions, Rate};
use crate::error::{Error, Problems, Result};
use crate::gate::GateConfig;
#[cfg(feature = "notify")]
use crate::notify::NotifyConfig;
use crate::registry::RegistryConfig;
use crate::retryable::Persist;
use crate::secret::Secret;
use crate::store::{Retention, StoreOptions};
use crate::task::limits;

pub use defaults::Defaults;
pub use guards::{GuardSettings, GuardedTableSettings};
pub use patch::PolicyPatch;
pub use server::{LogFormat, ServerSettings};
pub use targets::{HttpSettings, Network, TargetSettings};
pub use watch::Watcher;

use sources::Sources;
pub(crate) use sources::join;

/// The file that is read if none is named.
const FILE: &str = "redrive.toml";

/// All settings. Each says whether a change of it holds at once or from the next start.
///
/// ```
/// use redrive::{Persist, Settings};
///
/// let file = r#"
///     persist = "on_failure"
///     [engine]
///     scan_interval = "1s"
///     [defaults]
///     max_attempts = 5
///     [methods.charge]
///     max_attempts = "unlimited"
/// "#;
/// let variables = [("REDRIVE_DEFAULTS__MAX_ATTEMPTS".to_string(), "7".to_string())];
/// let settings = Settings::parse(file, variables.into_iter())?;
/// assert_eq!(settings.persist, Persist::OnFailure);
/// assert_eq!(settings.to_defaults().policy_for("mail").max_attempts, Some(7)); // the variable wins
/// assert_eq!(settings.to_defaults().policy_for("charge").max_attempts, None);
///
/// // All problems are listed at once, with their places.
/// let said = Settings::parse("persist = 'often'\n[engine]\nscan_intervall = '1s'", [].into_iter()).unwrap_err().to_string();
/// assert!(said.contains("persist") && said.contains("line 3") && said.contains("scan_interval"), "{said}");
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Settings {
    /// The database. From the next start on. Not written when settings are serialised: it may hold a password.
    /// Default: `sqlite://redrive.db`.
    #[serde(skip_serializing)]
    pub database: DatabaseUrl,
    /// The keys for params that are encrypted. From the next start on. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionSettings>,
    /// How people are told that tasks keep failing. From the next start on. Default: they are not.
    #[cfg(feature = "notify")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyConfig>,
    /// How nodes find each other. From the next start on. Default: by the database.
    pub registry: RegistryConfig,
    /// How long things are kept, and for how long the tables of a month are read. At once. Default: see there.
    pub retention: Retention,
    /// The engine. `scan_interval` and `sweep_interval` at once, the others from the next start on. Default: see there.
    pub engine: EngineConfig,
    /// When calls are written down that do not say so themselves. At once. Default: `retry_only`.
    pub persist: Persist,
    /// Policy fields for calls and tasks that do not say otherwise. At once, for new tasks. Default: none.
    pub defaults: PolicyPatch,
    /// What is different for a method; it wins over what the program says. At once. Default: nothing.
    pub methods: BTreeMap<String, MethodSettings>,
    /// What holds for all HTTP tasks. From the next start on. Default: see there.
    pub http: HttpSettings,
    /// How `redrive serve` answers. From the next start on. Default: see there.
    pub server: ServerSettings,
    /// Services that HTTP tasks name. From the next start on. Default: none.
    pub targets: BTreeMap<String, TargetSettings>,
    /// What holds for all guarded tables. From the next start on. Default: see there.
    pub guard: GuardSettings,
    /// Business tables whose failed rows are retried. From the next start on. Default: none.
    pub guards: BTreeMap<String, GuardedTableSettings>,
}

/// Settings of one method. Policy fields stand beside the others: `[methods.charge]`, `max_attempts = 5`, `concurrency = 2`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
#[non_exhaustive]
pub struct MethodSettings {
    /// Policy fields. At once, for new tasks. Default: none.
    #[serde(flatten)]
    pub policy: PolicyPatch,
    /// When its calls are written down. At once. Default: as the call says, or `persist` of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persist: Option<Persist>,
    /// How many of its tasks run at once on this node. At once. Default: as the program says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// How many of its tasks of one business id run at once, on all nodes together. Another number holds at once on nodes that
    /// started with one; having one or none, from the next start on. Default: as the program says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_business: Option<usize>,
    /// How many of its tasks start in a time, on all nodes together: `{ tasks = 100, per = "1s" }`. At once.
    /// Default: as the program says.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "read::write_rate")]
    pub rate: Option<Rate>,
    /// The circuit breaker that holds its tasks back while what they call is down: see [`gate`](crate::gate). From the next start on.
    /// Default: as the program says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateConfig>,
}

/// The keys for params that are encrypted: `[encryption]`, `current = "2026"`, `keys = { 2026 = "…" }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EncryptionSettings {
    /// The id of the key that is used for all that is written. Default: none, it must be given.
    pub current: String,
    /// All keys by id: 32 bytes each, in base64. Default: none, the current one must be there.
    pub keys: BTreeMap<String, Secret>,
    /// Whether the params of all tasks are encrypted, not only of those that ask for it. Default: no.
    pub all: bool,
}

impl EncryptionSettings {
    /// The keys, for [`StoreOptions::keyring`](crate::StoreOptions).
    pub fn keyring(&self) -> Result<Keyring> {
        let missing = || Error::invalid("current", format!("there is no key {:?} among the keys", self.current));
        let current = self.keys.get(&self.current).ok_or_else(missing)?;
        let mut ring = Keyring::new(&*self.current, Keyring::decode(current.reveal())?)?;
        for (id, key) in &self.keys {
            ring = ring.with(&**id, Keyring::decode(key.reveal())?)?;
        }
        Ok(if self.all { ring.encrypt_all() } else { ring })
    }
}

/// A database's URL. It may hold a password, so only its scheme is ever shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct DatabaseUrl(String);

impl Settings {
    /// From a file and the environment. `None`: `redrive.toml` in the current directory, if there is one.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let path = path.or_else(|| Some(Path::new(FILE)).filter(|file| file.exists()));
        let text = path.map_or_else(|| Ok(String::new()), watch::read)?;
        let name = path.unwrap_or(Path::new(FILE)).display().to_string();
        Sources::new(&name, &text, sources::environment()?).settings()
    }

    /// From the text of a file and these variables; those that do not begin with `REDRIVE_` are others'.
    pub fn parse(toml: &str, env: impl Iterator<Item = (String, String)>) -> Result<Self> {
        Sources::new(FILE, toml, env).settings()
    }

    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems::default();
        if let Err(Error::Invalid(engine)) = self.engine.validate() {
            problems.nest("engine", engine);
        }
        if let Some(Err(Error::Invalid(encryption))) = self.encryption.as_ref().map(EncryptionSettings::keyring) {
            problems.nest("encryption", encryption);
        }
        #[cfg(feature = "notify")]
        self.notify.iter().for_each(|notify| problems.nest("notify", notify.problems()));
        problems.nest("registry", self.registry.problems());
        problems.nest("retention", self.retention.problems());
        self.defaults.check("defaults", &mut problems);
        for (method, settings) in &self.methods {
            settings.check(method, &mut problems);
        }
        problems.nest("http", self.http.problems());
        problems.nest("server", self.server.problems());
        self.targets.iter().for_each(|(name, target)| target.check(name, &mut problems));
        problems.nest("guard", self.guard.problems());
        self.guards.iter().for_each(|(name, guard)| guard.check(name, &self.targets, &mut problems));
        guards::check_names(&self.guards, &mut problems);
        problems.into_result()
    }

    /// How the store is opened under them.
    pub fn store_options(&self) -> Result<StoreOptions> {
        let keyring = self.encryption.as_ref().map(EncryptionSettings::keyring).transpose()?;
        Ok(StoreOptions { keyring, ..StoreOptions::default() })
    }

    /// What they mean for calls and tasks.
    pub fn to_defaults(&self) -> Defaults {
        Defaults::from(self)
    }

    /// The fields in which these settings and others differ: `engine.lease`, `methods.charge.timeout`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (ours, theirs) = (self.flat(), other.flat());
        let fields: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differ = fields.into_iter().filter(|field| ours.get(*field) != theirs.get(*field)).cloned();
        let database = (self.database != other.database).then(|| "database".to_owned());
        database.into_iter().chain(differ).collect()
    }

    /// What holds after a change to `new` while running, and the fields that keep their value until the next start.
    pub fn followed_by(&self, new: Self) -> (Self, Vec<String>) {
        let (scan_interval, sweep_interval) = (new.engine.scan_interval, new.engine.sweep_interval);
        let engine = EngineConfig { scan_interval, sweep_interval, ..self.engine.clone() };
        let asked = new.clone();
        let methods = with_gates_of(new.methods, &self.methods);
        let held = Self {
            methods,
            database: self.database.clone(),
            encryption: self.encryption.clone(),
            #[cfg(feature = "notify")]
            notify: self.notify.clone(),
            registry: self.registry.clone(),
            http: self.http.clone(),
            server: self.server.clone(),
            targets: self.targets.clone(),
            guard: self.guard.clone(),
            guards: self.guards.clone(),
            engine,
            ..new
        };
        let waiting = held.differences(&asked);
        (held, waiting)
    }

    /// Every field by its path, as `engine.lease`. Without the database, which is not shown; secrets are masked.
    pub fn flat(&self) -> BTreeMap<String, Value> {
        let mut flat = BTreeMap::new();
        let mut open = vec![(Vec::new(), serde_json::to_value(self).unwrap_or_default())];
        while let Some((path, value)) = open.pop() {
            match value {
                Value::Object(fields) if sources::is_section(&path) => {
                    let below = |name: String| path.iter().cloned().chain([name]).collect();
                    open.extend(fields.into_iter().map(|(name, value)| (below(name), value)));
                }
                value => _ = flat.insert(sources::shown(&path), value),
            }
        }
        flat
    }
}

/// These methods with the gates that they had: those are made when the engine starts.
fn with_gates_of(
    mut new: BTreeMap<String, MethodSettings>,
    old: &BTreeMap<String, MethodSettings>,
) -> BTreeMap<String, MethodSettings> {
    new.iter_mut().for_each(|(name, method)| method.gate = old.get(name).and_then(|had| had.gate.clone()));
    for (name, had) in old.iter().filter(|(_, had)| had.gate.is_some()) {
        new.entry(name.clone())
            .or_insert_with(|| MethodSettings { gate: had.gate.clone(), ..MethodSettings::default() });
    }
    new
}

impl MethodSettings {
    /// The limits of a method whose program gives it these.
    pub(crate) fn limits_over(&self, code: &MethodOptions) -> MethodOptions {
        let mut options = code.clone();
        options.concurrency = self.concurrency.or(code.concurrency);
        options.per_business = self.per_business.or(code.per_business);
        options.rate = self.rate.or(code.rate);
        options.gate = self.gate.clone().or_else(|| code.gate.clone());
        options
    }

    fn check(&self, method: &str, problems: &mut Problems) {
        let path = join("methods", method);
        problems.require((1..=limits::METHOD).contains(&method.len()), &path, || {
            format!("a method's name must be from 1 to {} bytes", limits::METHOD)
        });
        self.policy.check(&path, problems);
        self.limits_over(&MethodOptions::default()).check(&path, problems);
        if let Some(rate) = self.rate.filter(|rate| !rate.per.is_zero()) {
            crate::duration::check(rate.per, &join(&path, "rate.per"), problems);
        }
    }
}

impl DatabaseUrl {
    /// The whole URL, with its password: for [`Store::open`](crate::Store::open), not to be shown.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for DatabaseUrl {
    fn default() -> Self {
        Self("sqlite://redrive.db".into())
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for DatabaseUrl {
    fn from(url: &str) -> Self {
        Self(url.into())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A text without `:` may be a password that was put in the wrong place.
        let scheme = self.0.split_once(':').map(|(scheme, _)| scheme);
        let scheme = scheme.filter(|s| ["sqlite", "postgres", "postgresql", "mysql", "mariadb"].contains(s));
        write!(f, "{}:***", scheme.unwrap_or_default())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
