//! The candidates at a size: the default's pick, and every way that exists.

use anyhow::Result;
use ringfold::internals::tune::Rules;
use ringfold::{Communicator, Method, Protocol, Request};

use super::arguments::SweepArguments;
use crate::tune::rows::{ANY, Way};

/// A candidate.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub way: (Method, Protocol),
    /// The requested number of channels, or the default's.
    pub channels: Option<u32>,
    pub is_default: bool,
    /// The rules under which the library picks this candidate.
    pub rules: Rules,
}

impl Candidate {
    /// Returns the way as rows name it.
    pub fn row_way(&self) -> Way {
        Way {
            algorithm: self.way.0.name().to_owned(),
            protocol: self.way.1.name().to_owned(),
            channels: self.channels.map_or(ANY, i64::from),
        }
    }

    /// Returns the row's value of the column `asked`.
    pub fn asked(&self) -> &'static str {
        if self.is_default { "default" } else { "way" }
    }
}

/// Returns all candidates for this request, the default's pick first; the same on all ranks. Leaves
/// the communicator with its own rules.
pub fn candidates(
    communicator: &mut Communicator,
    arguments: &SweepArguments,
    own: &Rules,
    request: &Request,
) -> Result<Vec<Candidate>> {
    let explanation = communicator.explain(request)?;
    let chosen = explanation.way;
    let mut candidates = vec![Candidate {
        way: (chosen.method(), chosen.protocol()),
        channels: Some(u32::try_from(chosen.channels)?),
        is_default: true,
        rules: own.clone(),
    }];
    let is_wanted = |(algorithm, protocol): (Method, Protocol)| {
        (arguments.algorithms.is_empty() || arguments.algorithms.contains(&algorithm))
            && (arguments.protocols.is_empty() || arguments.protocols.contains(&protocol))
    };
    let numbers: Vec<Option<u32>> = match arguments.channels.is_empty() {
        true => vec![None],
        false => arguments.channels.iter().copied().map(Some).collect(),
    };
    let usable = explanation.table.usable().map(|(way, _)| way);
    for way in usable.filter(|way| is_wanted(*way)) {
        let mut taken = Vec::new();
        for &channels in &numbers {
            let rules = only(request, way, channels)?;
            communicator.set_rules(rules.clone());
            let choice = communicator.explain(request)?.way;
            let goes = (choice.method(), choice.protocol()) == way;
            // A way with a bound on its channels, or without channels, would be measured several
            // times under one number.
            let is_new = !taken.contains(&choice.channels);
            if goes && is_new {
                taken.push(choice.channels);
                candidates.push(Candidate {
                    way,
                    channels: channels.and(u32::try_from(choice.channels).ok()),
                    is_default: false,
                    rules,
                });
            }
        }
    }
    communicator.set_rules(own.clone());
    Ok(candidates)
}

/// Returns rules with this way only.
fn only(
    request: &Request,
    (algorithm, protocol): (Method, Protocol),
    channels: Option<u32>,
) -> Result<Rules> {
    let (collective, channels) = (request.collective, channels.map_or(ANY, i64::from));
    let rule = format!("{collective},0,-1,{algorithm},{protocol},{channels},-1,-1");
    Ok(Rules::parse(&rule, "rules")?)
}
