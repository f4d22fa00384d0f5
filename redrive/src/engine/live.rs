//! Settings of a running engine: what holds now, and how it changes.
//!
//! *State.* Three layers, and the settings that follow from them and hold: what the file and the environment say; over it the
//! fields that people have set while nodes run (`redrive_setting`, read at every beat); over both what the program said on
//! the [`Builder`]: where its config or defaults are not as they are built in, and the limits of methods that it named.
//!
//! *Invariants.* Only valid settings are applied, as a whole. What cannot change while running keeps its value, and whoever
//! changed it is told.
//!
//! *Failure.* A file that cannot be read or is wrong changes nothing: the last good settings hold, and what is wrong is
//! logged, once. A field that was set and is not valid here (another build set it) is passed over, and logged.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinError;

use crate::clock::pause;
use crate::error::{Error, Result};
use crate::registry::RegistryConfig;
use crate::settings::{Defaults, Settings, Watcher, join};
use crate::store::SetField;
use crate::task::Lane;

use super::handler::{Handler, MethodOptions};
use super::services::Hands;
use super::{Builder, Engine, EngineConfig, Shared, lock};

/// How often the file is looked at; sooner when it has just changed, to see that it is whole.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug)]
pub(super) struct Live {
    settings: RwLock<Arc<Settings>>,
    layers: Mutex<Layers>,
    said: Said,
}

/// What the settings follow from, beside what the program said. Whoever changes it holds its lock until that is done.
#[derive(Debug, Default)]
struct Layers {
    file: Settings,
    set: Vec<SetField>,
}

impl Layers {
    /// Both, one over the other, and what of it cannot be; of what is set, that which counts.
    fn laid(&self, counts: impl Fn(&SetField) -> bool) -> (Settings, Vec<(&str, Error)>) {
        let mut settings = self.file.clone();
        let wrong = |field: &'_ SetField, settings: &mut Settings| settings.set(&field.path, field.value.clone()).err();
        let set = self.set.iter().filter(|field| counts(field));
        let wrong = set.filter_map(|f| wrong(f, &mut settings).map(|e| (&*f.path, e))).collect();
        (settings, wrong)
    }
}

/// What the program said on the builder.
#[derive(Debug)]
struct Said {
    config: EngineConfig,
    defaults: Defaults,
    /// Methods whose limits it gave.
    limits: HashSet<String>,
}

impl Live {
    fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How nodes are to find each other.
    pub(super) fn registry(&self) -> RegistryConfig {
        self.settings().registry.clone()
    }

    /// The limits of methods at the start, with what people have set: some of them are there from then on or not at all.
    pub(super) fn limits_with(&self, set: Vec<SetField>) -> impl Fn(&Handler) -> MethodOptions {
        let layers = Layers { file: lock(&self.layers).file.clone(), set };
        let settings = self.said.over(layers.laid(|_| true).0);
        let settings = if settings.validate().is_ok() { Arc::new(settings) } else { self.settings() };
        move |handler| self.said.limits_of(handler, &settings)
    }
}

impl Said {
    /// These settings, with what the program said on top.
    fn over(&self, mut settings: Settings) -> Settings {
        settings.engine = laid_over(&self.config, &settings.engine);
        self.defaults.over(&mut settings);
        settings
    }

    /// The limits of a method: the program's, and over them the settings', unless the builder gave them.
    fn limits_of(&self, handler: &Handler, settings: &Settings) -> MethodOptions {
        let ours = settings.methods.get(&handler.method).filter(|_| !self.limits.contains(&handler.method));
        ours.map_or_else(|| handler.options.clone(), |method| method.limits_over(&handler.options))
    }
}

/// A config with the fields of another that are not as they are built in.
fn laid_over(upper: &EngineConfig, lower: &EngineConfig) -> EngineConfig {
    let fields = |config: &EngineConfig| match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (mut all, built_in) = (fields(lower), fields(&EngineConfig::default()));
    all.extend(fields(upper).into_iter().filter(|(name, value)| built_in.get(name) != Some(value)));
    serde_json::from_value(all.into()).unwrap_or_else(|_| upper.clone())
}

impl Builder {
    /// With these settings. What [`config`](Self::config) and [`defaults`](Self::defaults) have otherwise than it is built in
    /// wins over them, and so does [`limit`](Self::limit).
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// With the settings of this file and of the environment, now and whenever the file changes. They take the place of
    /// [`settings`](Self::settings). A change that is not valid is logged and changes nothing; what cannot change while
    /// running is named in a warning.
    pub fn watch(mut self, path: impl Into<PathBuf>) -> Self {
        self.watch = Some(path.into());
        self
    }

    /// The settings to begin with; config and defaults become what they say.
    pub(super) fn resolve(&mut self) -> Result<(Live, Option<Watcher>)> {
        let (watcher, settings) = match self.watch.take() {
            Some(path) => Watcher::open(path).map(|(watcher, settings)| (Some(watcher), settings))?,
            None => (None, std::mem::take(&mut self.settings)),
        };
        let limits = self.limits.keys().cloned().collect();
        let said = Said { config: self.config.clone(), defaults: self.defaults.clone(), limits };
        let layers = Mutex::new(Layers { file: settings.clone(), set: Vec::new() });
        let settings = said.over(settings);
        settings.validate()?;
        (self.config, self.defaults) = (settings.engine.clone(), settings.to_defaults());
        #[cfg(feature = "notify")]
        {
            self.notify = self.notify.take().or_else(|| settings.notify.clone());
        }
        Ok((Live { settings: RwLock::new(Arc::new(settings)), layers, said }, watcher))
    }
}

impl Engine {
    /// The settings that hold now.
    pub fn settings(&self) -> Arc<Settings> {
        self.0.settings()
    }

    /// Applies other settings, if they are valid, and gives the fields that keep their value until the next start. If a file
    /// is watched, its next change takes their place. What people have [set](Self::set) wins over them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// use redrive::{Engine, Store};
    ///
    /// let engine = Engine::builder(Store::open("sqlite::memory:").await?).start().await?;
    /// let mut settings = (*engine.settings()).clone();
    /// settings.defaults.set("max_attempts", 5)?;
    /// settings.engine.concurrency = 7;
    /// assert_eq!(engine.apply_settings(settings)?, ["engine.concurrency"]);
    /// assert_eq!(engine.defaults().policy.max_attempts, Some(5));
    /// # engine.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn apply_settings(&self, settings: Settings) -> Result<Vec<String>> {
        self.0.apply(settings)
    }

    /// What would hold here if nobody had set this field: what the file says of it, and all else as it is.
    pub fn settings_without(&self, path: &str) -> Settings {
        let live = &self.0.live;
        live.said.over(lock(&live.layers).laid(|field| field.path != path).0)
    }

    /// Sets one field on all nodes, by its path as in the file; `None`: as the file says, again. It is refused if it is not valid, or
    /// does not hold at once. Other nodes follow at their next beat. The audit knows who set what. Gives the fields that wait
    /// for the next start all the same.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// use redrive::{Engine, Store};
    ///
    /// let engine = Engine::builder(Store::open("sqlite::memory:").await?).start().await?;
    /// engine.set("defaults.max_attempts", Some(5.into()), "alice").await?;
    /// assert_eq!(engine.defaults().policy.max_attempts, Some(5));
    /// engine.set("defaults.max_attempts", None, "alice").await?;
    /// assert_eq!(engine.defaults().policy.max_attempts, Some(16));
    /// # engine.stop().await;
    /// # Ok(()) }
    /// ```
    pub async fn set(&self, path: &str, value: Option<Value>, by: &str) -> Result<Vec<String>> {
        if let Some(value) = &value {
            (*self.settings()).clone().set(path, value.clone())?;
        }
        self.0.store.set_field(path, value.as_ref(), by, self.0.clock.now()).await?;
        let _one_at_a_time = self.0.following.lock().await;
        let set = self.0.store.set_fields().await?;
        Ok(self.0.take_set(set)) // whether or not a beat has seen it meanwhile: who set it is told what waits
    }
}

impl Shared {
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.live.settings()
    }

    /// What the file says now, or what takes its place.
    fn apply(&self, file: Settings) -> Result<Vec<String>> {
        file.validate()?;
        let mut layers = lock(&self.live.layers);
        let before = std::mem::replace(&mut layers.file, file);
        let applied = self.put(self.live.said.over(layers.laid(|_| true).0));
        if applied.is_err() {
            layers.file = before;
        }
        applied
    }

    /// What people have set now, if that is news.
    pub(super) fn follow_set(&self, set: Vec<SetField>) {
        let is_news = lock(&self.live.layers).set != set;
        if is_news {
            self.take_set(set);
        }
    }

    /// What people have set now. Gives the fields that wait for the next start.
    fn take_set(&self, set: Vec<SetField>) -> Vec<String> {
        let mut layers = lock(&self.live.layers);
        layers.set = set;
        let (settings, wrong) = layers.laid(|_| true);
        for (path, e) in wrong {
            tracing::warn!(path, error = %e, "a field that was set is not valid here; it is passed over");
        }
        let before = self.settings();
        let waiting = self.put(self.live.said.over(settings)).unwrap_or_else(|e| {
            tracing::error!(problems = %e, "what was set is not valid; the last good settings hold");
            Vec::new()
        });
        let changed = before.differences(&self.settings()).join(", ");
        if !changed.is_empty() {
            tracing::info!(changed, "settings applied that people have set");
        }
        waiting
    }

    /// One after the other: who holds the lock of the settings changes all that follows from them.
    fn put(&self, new: Settings) -> Result<Vec<String>> {
        new.validate()?;
        let mut current = self.live.settings.write().unwrap_or_else(PoisonError::into_inner);
        let (held, mut waiting) = current.followed_by(new);
        *self.defaults.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(held.to_defaults());
        waiting.extend(self.apply_limits(&held));
        *current = Arc::new(held);
        drop(current);
        self.wake.scanner.notify_one(); // it may be waiting for a longer interval
        Ok(waiting)
    }

    /// Limits of methods. Gives the fields that wait for the next start.
    fn apply_limits(&self, settings: &Settings) -> Vec<String> {
        let now = self.clock.now();
        let of = |h| self.live.said.limits_of(h, settings);
        let mut wanted: Vec<_> = self.handlers.values().map(|h| (&h.method, of(h))).collect();
        wanted.sort_by_key(|(method, _)| *method);
        let mut waiting = self.waiting();
        let mut limits = self.limits();
        wanted.retain(|(method, options)| !limits.change(Lane::of(method), options.clone(), now));
        waiting.deep.retain(|lane| !limits.is_tight(*lane)); // from now on its tasks are looked at one by one
        waiting.ready.unpark_all();
        self.wake.claimer.notify_one();
        wanted.into_iter().map(|(method, _)| join(&join("methods", method), "per_business")).collect()
    }

    /// Takes over what the file says, or says why not.
    fn follow(&self, watcher: &Watcher, told: Result<Settings>) {
        let file = watcher.path().display();
        let before = self.settings();
        match told.and_then(|new| self.apply(new)) {
            Err(e) => {
                tracing::error!(%file, problems = %e, "the settings have changed and are not valid; the last good ones hold");
            }
            Ok(waiting) => {
                let changed = before.differences(&self.settings()).join(", ");
                tracing::info!(%file, changed, "settings applied");
                if !waiting.is_empty() {
                    tracing::warn!(%file, fields = waiting.join(", "), "these settings have changed; restart to apply them");
                }
            }
        }
    }
}

/// Watches the file.
pub(super) async fn run(shared: Arc<Shared>, watcher: Watcher) {
    let watcher = Arc::new(Mutex::new(watcher));
    shared.keep_up_service("settings", Hands::Empty, move |shared| watch(shared, watcher.clone())).await;
}

async fn watch(shared: Arc<Shared>, watcher: Arc<Mutex<Watcher>>) {
    loop {
        let is_settling = lock(&watcher).is_settling();
        tokio::select! {
            () = pause(if is_settling { LOOK_AGAIN } else { LOOK }) => {}
            () = shared.stopping.cancelled() => return,
        }
        // A file may be far away: reading it must not hold up what else runs on this thread.
        let looking = watcher.clone();
        match tokio::task::spawn_blocking(move || lock(&looking).changed()).await.map_err(JoinError::try_into_panic) {
            Ok(None) => {}
            Ok(Some(told)) => shared.follow(&lock(&watcher), told),
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => return, // the runtime ends
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_the_program_set_win_over_the_file() {
        let code = EngineConfig { concurrency: 7, ..EngineConfig::default() };
        let quick = Duration::from_millis(300);
        let file = EngineConfig { concurrency: 9, scan_interval: quick, ..EngineConfig::default() };
        let both = laid_over(&code, &file);
        assert_eq!((both.concurrency, both.scan_interval), (7, quick));
        assert_eq!(laid_over(&EngineConfig::default(), &file), file);
        assert_eq!(laid_over(&code, &EngineConfig::default()), code);
    }
}
