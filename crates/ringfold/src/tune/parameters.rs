//! Tables of named, bounded numbers, and their text form.
//!
//! A table is a struct that [`parameters!`](crate::tune::parameters::parameters) generates together
//! with the list of its [`Parameter`]s: a new parameter is one entry there. The text form of a
//! table is `name=value,name=value`, which ranks exchange, variables and files hold, and the log
//! shows. Text from outside is refused unless every name is known and occurs once, and every value
//! is within its bounds.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The value of a minimum size whose feature is never used.
pub const NEVER: u64 = u64::MAX;

/// A struct of numbers that [`parameters!`](crate::tune::parameters::parameters) has generated.
pub trait ParameterTable: Default + 'static {
    /// The type of the numbers.
    type Value: ParameterValue;
    /// The word for a parameter of the table in errors.
    const KIND: &'static str;
    /// Maximum length of the text form.
    const TEXT_BYTES_MAX: usize;
    /// Every parameter, in the order of the struct.
    const PARAMETERS: &'static [Parameter<Self>];
}

/// A number of a table: a measured one, or a size in bytes.
pub trait ParameterValue: Copy + PartialOrd + fmt::Display + 'static {
    /// The word for a value in errors.
    const UNIT: &'static str;

    /// Parses a value within `bounds`. The error text describes the accepted values.
    fn parse(text: &str, bounds: &RangeInclusive<Self>) -> Result<Self, String>;

    /// Returns the text that [`parse`](ParameterValue::parse) reads.
    fn text(self) -> String {
        self.to_string()
    }
}

/// One parameter of a table.
pub struct Parameter<T: ParameterTable> {
    /// The parameter's name, which ends with its unit.
    pub name: &'static str,
    /// The parameter's description.
    pub about: &'static str,
    /// The accepted values.
    pub bounds: RangeInclusive<T::Value>,
    #[doc(hidden)]
    pub read: fn(&T) -> T::Value,
    #[doc(hidden)]
    pub write: fn(&mut T, T::Value),
}

/// Generates a struct of numbers, its defaults and the list of its parameters from one table.
macro_rules! parameters {
    (
        $(#[$attribute:meta])*
        $kind:literal $table:ident of $value:ty, text up to $text_bytes:ident {
            $($(#[doc = $about:literal])+ $name:ident = $default:expr, $bounds:expr;)+
        }
        $(beside $(#[doc = $more_about:literal])+ $more:ident: $more_type:ty)?
    ) => {
        $(#[$attribute])*
        pub struct $table {
            $($(#[doc = $about])+ pub $name: $value,)+
            $($(#[doc = $more_about])+ pub $more: $more_type,)?
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($name: $default,)+ $($more: Default::default(),)? }
            }
        }

        impl $crate::tune::parameters::ParameterTable for $table {
            type Value = $value;
            const KIND: &'static str = $kind;
            const TEXT_BYTES_MAX: usize = $text_bytes;
            const PARAMETERS: &'static [$crate::tune::parameters::Parameter<$table>] =
                &[$($crate::tune::parameters::Parameter {
                    name: stringify!($name),
                    about: concat!($($about),+).trim_ascii(),
                    bounds: $bounds,
                    read: |table| table.$name,
                    write: |table, value| table.$name = value,
                },)+];
        }
    };
}
pub(crate) use parameters;

impl<T: ParameterTable> Parameter<T> {
    /// Returns the parameter's value in `table`.
    pub fn value(&self, table: &T) -> T::Value {
        (self.read)(table)
    }

    /// Returns the parameter's value in `table`, as text.
    pub fn text(&self, table: &T) -> String {
        self.value(table).text()
    }

    /// Returns the parameter of this name.
    fn named(name: &str) -> Result<&'static Parameter<T>, String> {
        let mut known = T::PARAMETERS.iter();
        known.find(|known| known.name == name).ok_or_else(|| {
            let known = T::PARAMETERS.iter().map(|known| known.name);
            let nearest = crate::units::nearest(name, known);
            let kind = T::KIND;
            format!("unknown {kind} `{name}`; did you mean {nearest}?")
        })
    }
}

impl<T: ParameterTable<Value = f64>> Parameter<T> {
    /// Sets the parameter in `table`, clamped to its bounds; ignores NaN.
    pub fn set(&self, table: &mut T, value: f64) {
        if !value.is_nan() {
            (self.write)(table, value.clamp(*self.bounds.start(), *self.bounds.end()));
        }
    }
}

impl<T: ParameterTable> fmt::Debug for Parameter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Writes all parameters of `table` as the text that [`Overrides`] parse.
pub fn write<T: ParameterTable>(table: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, parameter) in T::PARAMETERS.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(f, "{comma}{}={}", parameter.name, parameter.text(table))?;
    }
    Ok(())
}

/// Parses a text: `take` receives each name with its value.
pub fn read<T: ParameterTable>(
    text: &str,
    mut take: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    if text.len() > T::TEXT_BYTES_MAX {
        let most = T::TEXT_BYTES_MAX;
        return Err(format!("must be {most} characters or fewer"));
    }
    text.split(',').map(str::trim).try_for_each(|entry| {
        let (name, value) = entry
            .split_once('=')
            .ok_or_else(|| format!("`{entry}` is not `name={}`", T::Value::UNIT))?;
        take(name.trim(), value.trim())
    })
}

/// Values for some parameters of a table, at most one each.
#[derive(Clone, Debug)]
pub struct Overrides<T: ParameterTable>(Vec<(&'static Parameter<T>, T::Value)>);

impl<T: ParameterTable> Overrides<T> {
    /// Adds a value.
    ///
    /// # Errors
    /// A text for an unknown name, a value out of bounds, or a parameter that already has a value.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let parameter = Parameter::<T>::named(name)?;
        if self.0.iter().any(|(given, _)| given.name == name) {
            return Err(format!("duplicate entry `{name}`"));
        }
        let value = T::Value::parse(value, &parameter.bounds)
            .map_err(|wanted| format!("{name} {wanted}"))?;
        self.0.push((parameter, value));
        Ok(())
    }

    /// Whether every parameter of the table has a value.
    pub fn is_whole(&self) -> bool {
        self.0.len() == T::PARAMETERS.len()
    }

    /// Returns `table` with these values, which must be those of all its parameters.
    ///
    /// # Errors
    /// A text that names the first parameter without a value.
    pub fn whole_over(&self, table: T) -> Result<T, String> {
        let has_value =
            |known: &Parameter<T>| self.0.iter().any(|(given, _)| given.name == known.name);
        match T::PARAMETERS.iter().find(|known| !has_value(known)) {
            None => Ok(self.over(table)),
            Some(missing) => Err(format!("`{}` is missing", missing.name)),
        }
    }

    /// Returns `table` with these values instead of its own.
    pub fn over(&self, mut table: T) -> T {
        for (parameter, value) in &self.0 {
            (parameter.write)(&mut table, *value);
        }
        table
    }
}

impl<T: ParameterTable> FromStr for Overrides<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Overrides<T>, String> {
        let mut overrides = Overrides::default();
        read::<T>(text, |name, value| overrides.add(name, value))?;
        Ok(overrides)
    }
}

impl<T: ParameterTable> Default for Overrides<T> {
    fn default() -> Overrides<T> {
        Overrides(Vec::new())
    }
}

impl ParameterValue for f64 {
    const UNIT: &'static str = "value";

    fn parse(text: &str, bounds: &RangeInclusive<f64>) -> Result<f64, String> {
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        value.filter(|value| bounds.contains(value)).ok_or_else(|| {
            let (least, most) = (bounds.start(), bounds.end());
            format!("must be a number from {least} to {most}, not `{text}`")
        })
    }
}

/// Bytes, or [`NEVER`] if the bounds end with it.
impl ParameterValue for u64 {
    const UNIT: &'static str = "bytes";

    fn parse(text: &str, bounds: &RangeInclusive<u64>) -> Result<u64, String> {
        let value = match text {
            "0" => 0,
            "never" => NEVER,
            _ => crate::units::bytes(text).map_err(|why| format!("cannot be `{text}`: {why}"))?
                as u64,
        };
        if bounds.contains(&value) {
            return Ok(value);
        }
        let least = bounds.start();
        Err(match *bounds.end() {
            NEVER => format!("must be {least} bytes or more, or never"),
            most => format!("must be {least} to {most} bytes"),
        })
    }

    fn text(self) -> String {
        match self {
            NEVER => "never".into(),
            bytes => bytes.to_string(),
        }
    }
}
