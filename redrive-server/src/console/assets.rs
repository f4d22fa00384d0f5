//! Styles and scripts, in the binary. Their address has a hash of all of them, so browsers may keep them for ever and never
//! have old ones with a new page.

use std::sync::LazyLock;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::server::input::Names;
use crate::server::problem::Problem;

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

const ASSETS: &[(&str, &str, &str)] = &[
    ("app.css", CSS, include_str!("assets/app.css")),
    ("app.js", JS, include_str!("assets/app.js")),
    ("times.js", JS, include_str!("assets/times.js")),
    ("live.js", JS, include_str!("assets/live.js")),
    ("bulk.js", JS, include_str!("assets/bulk.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// A hash of all of them.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = Sha256::new();
    ASSETS.iter().for_each(|(_, _, text)| hasher.update(text));
    hasher.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

/// Whatever version is asked for: there is only this one.
pub(super) async fn serve(Names([version, name]): Names<2>, headers: HeaderMap) -> Response {
    let Some((_, kind, text)) = ASSETS.iter().find(|(known, _, _)| *known == name) else {
        return Problem::not_found("file", name).into_response();
    };
    let tag = format!("\"{}\"", *VERSION);
    let keep = if version == *VERSION { "public, max-age=31536000, immutable" } else { "no-cache" };
    let about = [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, keep), (header::ETAG, &*tag)];
    match headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == &*tag) {
        true => (StatusCode::NOT_MODIFIED, about).into_response(),
        false => (about, *text).into_response(),
    }
}
