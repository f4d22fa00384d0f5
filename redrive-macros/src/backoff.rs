//! The waits between attempts: `backoff` and `jitter`.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::{Ident, LitStr, Token, parenthesized};

use crate::value::{Millis, listed, number, word};

const MOST_DELAYS: usize = 100;

/// `exponential(initial = "2s", factor = 2, max = "5m")`, `linear(…)`, `fixed("5s")`, `list("1s", "5s")`.
pub(crate) fn backoff(input: ParseStream) -> syn::Result<Tokens> {
    let why = "one of exponential(initial = \"2s\", factor = 2, max = \"10m\"), linear(initial = \"2s\", max = \"10m\"), \
               fixed(\"5s\"), list(\"1s\", \"5s\", \"1m\")";
    let said = input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), why))?;
    match &*said.to_string() {
        "exponential" => {
            let Growth { initial, factor, max } = growth(input, &["initial", "factor", "max"])?;
            Ok(quote!(::redrive::Backoff::exponential(#initial, #factor, #max)))
        }
        "linear" => {
            let Growth { initial, max, .. } = growth(input, &["initial", "max"])?;
            Ok(quote!(::redrive::Backoff::linear(#initial, #max)))
        }
        "fixed" => {
            let every = delays(input, said.span(), 1, "fixed(\"5s\") has one delay")?;
            Ok(quote!(::redrive::Backoff::fixed(#(#every)*)))
        }
        "list" => {
            let delays =
                delays(input, said.span(), MOST_DELAYS, "list(\"1s\", \"5s\", \"1m\") has from 1 to 100 delays")?;
            Ok(quote!(::redrive::Backoff::list([#(#delays),*])))
        }
        _ => Err(syn::Error::new(said.span(), why)),
    }
}

fn delays(input: ParseStream, name: Span, most: usize, why: &str) -> syn::Result<Vec<Millis>> {
    if !input.peek(syn::token::Paren) {
        return Err(syn::Error::new(name, why));
    }
    let inside;
    parenthesized!(inside in input);
    let delays = Punctuated::<Millis, Token![,]>::parse_terminated(&inside)?;
    if !(1..=most).contains(&delays.len()) {
        return Err(syn::Error::new(name, why));
    }
    Ok(delays.into_iter().collect())
}

/// What a growing backoff is made of. What is not given is as in the policy's own defaults.
struct Growth {
    initial: Millis,
    factor: f64,
    max: Millis,
}

fn growth(input: ParseStream, names: &[&str]) -> syn::Result<Growth> {
    let mut growth = Growth { initial: Millis(2_000), factor: 2.0, max: Millis(600_000) };
    if !input.peek(syn::token::Paren) {
        return Ok(growth);
    }
    let inside;
    let parens = parenthesized!(inside in input);
    let mut seen = Vec::new();
    while !inside.is_empty() {
        let allowed = || format!("one of {}, each once: `initial = \"2s\"`", listed(names.iter().copied()));
        let name = inside.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), allowed()))?;
        if !names.iter().any(|allowed| name == allowed) || seen.contains(&name) {
            return Err(syn::Error::new(name.span(), allowed()));
        }
        inside.parse::<Token![=]>()?;
        match &*name.to_string() {
            "initial" => growth.initial = inside.parse()?,
            "factor" => growth.factor = number(&inside, 1.0, 1000.0, "a factor is a number from 1 to 1000")?,
            _ => growth.max = inside.parse()?,
        }
        seen.push(name);
        if !inside.is_empty() {
            inside.parse::<Token![,]>()?;
        }
    }
    if growth.initial > growth.max {
        return Err(syn::Error::new(
            parens.span.join(),
            "the longest wait, `max`, is shorter than the first, `initial`",
        ));
    }
    Ok(growth)
}

/// `"1s"`, `none`, `full`, `equal`, `proportional(0.2)`.
pub(crate) fn jitter(input: ParseStream) -> syn::Result<Tokens> {
    if input.peek(LitStr) {
        let most: Millis = input.parse()?;
        return Ok(quote!(::redrive::Jitter::Add(#most)));
    }
    if input.peek(Ident) && input.peek2(syn::token::Paren) {
        let said: Ident = input.parse()?;
        let inside;
        parenthesized!(inside in input);
        if said == "proportional" {
            let share = number(&inside, 0.0, 1.0, "a share of the wait is a number from 0 to 1, such as 0.2")?;
            return Ok(quote!(::redrive::Jitter::Proportional(#share)));
        }
        return Err(syn::Error::new(said.span(), JITTERS));
    }
    word(input, "Jitter", &[("none", "None"), ("full", "Full"), ("equal", "Equal")])
        .map_err(|e| syn::Error::new(e.span(), JITTERS))
}

const JITTERS: &str = "a duration that is added, such as \"1s\", or one of none, full, equal, proportional(0.2)";
