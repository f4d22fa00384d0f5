//! Settings: what holds on this server and where it comes from; and the fields that people may change while nodes run, in two steps:
//! what would change is shown before it is saved.
//!
//! *Invariants.* Nothing is changed by looking at a change: that is a GET. What is saved was valid when it was shown and is checked
//! again; if somebody else has set the field since it was shown, nothing is saved.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::store::{Role, SetField};
use redrive::{Policy, Settings};
use serde_json::Value;

use crate::server::App;
use crate::server::problem::{Answer, Problem};

use super::fields::Fields;
use super::html::{self, Html};
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

#[derive(Template)]
#[template(path = "settings.html")]
struct Page {
    f: Frame,
    groups: Vec<Group>,
    names: Vec<String>,
}

/// The settings of a section.
struct Group {
    name: String,
    rows: Vec<Row>,
}

struct Row {
    path: String,
    value: String,
    from: Html,
    /// Where it is changed, if it may be.
    change: Option<String>,
}

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Answer<Response> {
    visit.needs(&app, Role::Operator).await?;
    let f = visit.frame;
    let (settings, set) = (app.settings(), app.store.set_fields().await?);
    let built_in = Settings::default().flat();
    let mut groups: Vec<Group> = Vec::new();
    for (path, value) in settings.flat() {
        let name = path.split('.').next().unwrap_or_default().to_owned();
        let row = Row {
            from: from(&path, &value, &set, built_in.get(&path), f.w),
            change: is_hot(&settings, &path, &value).then(|| change_link(&path)),
            value: text(&value),
            path,
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { name, rows: vec![row] }),
        }
    }
    // What people may change, and have, is what they look for.
    groups.sort_by_key(|group| !group.rows.iter().any(|row| row.change.is_some()));
    let page = Page { groups, names: names(), f: f.clone() };
    Ok(f.show(&page))
}

/// The fields that can be set and need not be there: for the list to choose from.
fn names() -> Vec<String> {
    let policy = serde_json::to_value(full_policy()).unwrap_or_default();
    let fields = policy.as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let own = ["persist", "engine.scan_interval", "engine.sweep_interval"].map(String::from);
    let methods = ["concurrency", "per_business", "rate"].map(|field| format!("methods.\"a.method\".{field}"));
    own.into_iter().chain(fields.map(|field| format!("defaults.{field}"))).chain(methods).collect()
}

/// One whose JSON names what is commonly set.
fn full_policy() -> Policy {
    Policy {
        max_attempts: Some(7),
        max_duration: Some(std::time::Duration::from_secs(3600)),
        backoff: redrive::Backoff::fixed(std::time::Duration::from_secs(1)),
        timeout: Some(std::time::Duration::from_secs(7)),
        on_exhausted: redrive::OnExhausted::Escalate,
        ..Policy::default()
    }
}

/// Whether a field holds at once: then it can be set to what it is.
fn is_hot(settings: &Settings, path: &str, value: &Value) -> bool {
    settings.clone().set(path, value.clone()).is_ok()
}

fn change_link(path: &str) -> String {
    format!("/settings/change{}", Fields::default().with("path", Some(path)).query())
}

/// As a person would type it: texts bare, the rest as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a person typed: JSON if it is any, else a text, as on the command line.
fn read(typed: &str) -> Value {
    serde_json::from_str(typed).unwrap_or_else(|_| Value::String(typed.to_owned()))
}

fn from(path: &str, value: &Value, set: &[SetField], built_in: Option<&Value>, w: &Words) -> Html {
    if let Some(field) = set.iter().find(|field| field.path == path) {
        let by = html::escape(&fill(w.set_by, &[&field.by.as_deref().unwrap_or("?")]));
        return Html(format!("<b>{by}</b> {}", html::ago(field.since)));
    }
    let word = if built_in == Some(value) { w.set_built_in } else { w.set_in_file };
    Html(format!("<span class=\"muted\">{}</span>", html::escape(word)))
}

/// A change before it is made.
#[derive(Template)]
#[template(path = "setting.html")]
struct Change {
    f: Frame,
    path: String,
    typed: String,
    /// What is set now, as it is stored; nothing if it is not set.
    was: String,
    is_set: bool,
    /// What holds now.
    holds: String,
    wrong: Option<String>,
    /// What would change: path, before, after.
    diff: Vec<(String, String, String)>,
    /// It would hold from the next start on.
    waits: bool,
    /// It is to be as the files say.
    unset: bool,
    /// It has been looked at, and can be saved.
    ready: bool,
}

pub(super) async fn change(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    visit.needs(&app, Role::Admin).await?;
    let f = visit.frame;
    let (settings, path, unset) = (app.settings(), asked.text("path").to_owned(), asked.is("unset", "yes"));
    let flat = settings.flat();
    let set = app.store.set_fields().await?.into_iter().find(|field| field.path == path);
    let holds = flat.get(&path).map(text).unwrap_or_default();
    let typed = asked.get("value").map_or_else(|| holds.clone(), str::to_owned);
    let new = match asked.get("value") {
        _ if unset => Ok(app.engine()?.settings_without(&path)),
        Some(value) => changed(&settings, &path, value),
        None => Ok((*settings).clone()),
    };
    let waits = new.as_ref().is_ok_and(|new| app.waiting(&path, &settings, new).is_some());
    let seen = new.map(|new| match unset {
        true => {
            let before = set.as_ref().map(|field| text(&field.value)).unwrap_or_default();
            vec![(path.clone(), before, f.w.set_as_file.to_owned())]
        }
        false => differences(&settings, &new),
    });
    let (diff, wrong) = seen.map_or_else(|why| (Vec::new(), Some(why)), |diff| (diff, None));
    let page = Change {
        ready: !diff.is_empty(),
        is_set: set.is_some(),
        was: set.map(|field| field.value.to_string()).unwrap_or_default(),
        path,
        typed,
        holds,
        wrong: wrong.or_else(|| {
            let same = asked.get("value").is_some() && diff.is_empty() && !unset;
            same.then(|| f.w.set_same.to_owned())
        }),
        waits,
        diff,
        unset,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

/// The settings with what was typed, or what is wrong with that.
fn changed(settings: &Settings, path: &str, typed: &str) -> Result<Settings, String> {
    let mut new = settings.clone();
    new.set(path, read(typed)).map_err(|e| e.to_string())?;
    Ok(new)
}

/// What would change: path, before, after.
fn differences(settings: &Settings, new: &Settings) -> Vec<(String, String, String)> {
    let (before, after) = (settings.flat(), new.flat());
    let shown = |value: Option<&Value>| value.map(text).unwrap_or_default();
    let change = |path: String| (shown(before.get(&path)), shown(after.get(&path)), path);
    let all = settings.differences(new).into_iter().map(change);
    all.map(|(before, after, path)| (path, before, after)).collect()
}

pub(super) async fn save(State(app): State<App>, act: Act) -> Answer<Response> {
    act.admin(&app).await?;
    let (path, unset) = (act.fields.text("path"), act.fields.is("unset", "yes"));
    let set = app.store.set_fields().await?.into_iter().find(|field| field.path == path);
    if set.map(|field| field.value.to_string()).unwrap_or_default() != act.fields.text("was") {
        let detail = format!("{path} was set by somebody else since you looked at it");
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    let value = (!unset).then(|| read(act.fields.text("value")));
    let waiting = app.set(path, value, &act.visit.who.name).await?;
    let said = match unset {
        _ if waiting.is_some() => Said::SettingWaits,
        true => Said::SettingUnset,
        false => Said::SettingSet,
    };
    Ok(act.visit.frame.go("/settings", said, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_before_it_is_made_and_a_mistake_is_named() {
        let settings = Settings::default();
        let seen = |typed: &str| differences(&settings, &changed(&settings, "engine.scan_interval", typed).unwrap());
        assert_eq!(seen("1s"), [("engine.scan_interval".to_owned(), "5s".to_owned(), "1s".to_owned())]);
        assert!(seen("5s").is_empty());
        assert!(changed(&settings, "defaults.max_attempts", "0").unwrap_err().contains("max_attempts"));
        assert!(changed(&settings, "engine.lease", "1m").unwrap_err().contains("file"));
    }

    #[test]
    fn texts_need_no_quotes_and_numbers_stay_numbers() {
        assert_eq!((read("10s"), read("7"), read("\"7\"")), ("10s".into(), 7.into(), "7".into()));
        assert_eq!(read("{\"fixed\": \"3s\"}")["fixed"], "3s");
        assert_eq!((text(&"10s".into()), text(&7.into())), ("10s".to_owned(), "7".to_owned()));
    }

    #[test]
    fn only_what_holds_at_once_can_be_changed() {
        let settings = Settings::default();
        let flat = settings.flat();
        let hot = |path: &str| is_hot(&settings, path, &flat[path]);
        assert!(hot("persist") && hot("retention.keep_dead") && hot("engine.scan_interval"));
        assert!(!hot("engine.lease") && !hot("server.max_body"));
        assert!(names().contains(&"defaults.max_attempts".to_owned()), "{:?}", names());
    }
}
