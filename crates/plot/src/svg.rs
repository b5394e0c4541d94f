//! A picture as SVG: one file, no scripts, no references, readable by screen readers.

use std::fmt::Write as _;

use super::color::Color;
use super::picture::{Anchor, Layer, Picture, Point, Rect, Shape, Stroke, Text};
use super::text::{self, Hidden};

/// The SVG of a picture, with U+FFFD for the characters that are `hidden`; it can stand in a file of its own or inside HTML.
pub fn render(picture: &Picture, hidden: Hidden) -> String {
    let mut out = Writer { out: String::with_capacity(4096), hidden };
    let (width, height) = (picture.width, picture.height);
    out.raw(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"DejaVu Sans,Verdana,sans-serif\" aria-label=\""
    ));
    out.escaped(&picture.title);
    out.raw("\">\n<title>");
    out.escaped(&picture.title);
    out.raw("</title>\n<desc>");
    out.escaped(&picture.description);
    out.raw("</desc>\n<rect width=\"100%\" height=\"100%\"");
    out.paint("fill", picture.background);
    out.raw("/>\n");
    out.layer(&picture.layer);
    out.raw("</svg>\n");
    out.out
}

struct Writer {
    out: String,
    hidden: Hidden,
}

impl Writer {
    fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn escaped(&mut self, content: &str) {
        for letter in content.chars() {
            match text::drawn(letter, self.hidden) {
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '&' => self.raw("&amp;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                other => self.out.push(other),
            }
        }
    }

    /// A hundredth of a pixel is more than a screen shows.
    fn number(&mut self, value: f64) {
        let rounded = (value * 100.0).round() / 100.0;
        // Adding zero makes a negative zero positive.
        let _ = write!(self.out, "{}", rounded + 0.0);
    }

    /// Writes an attribute of one number, or of several that spaces separate.
    fn attribute(&mut self, name: &str, values: &[f64]) {
        let _ = write!(self.out, " {name}=\"");
        for (at, value) in values.iter().enumerate() {
            self.raw(if at > 0 { " " } else { "" });
            self.number(*value);
        }
        self.raw("\"");
    }

    /// Writes an element of attributes only.
    fn element(&mut self, name: &str, attributes: &[(&str, f64)], fill: Color) {
        let _ = write!(self.out, "<{name}");
        attributes.iter().for_each(|(name, value)| self.attribute(name, &[*value]));
        self.paint("fill", fill);
        self.raw("/>\n");
    }

    fn paint(&mut self, name: &str, color: Color) {
        let [red, green, blue] = color.rgb;
        let _ = write!(self.out, " {name}=\"#{red:02x}{green:02x}{blue:02x}\"");
        if color.alpha != 255 {
            let _ = write!(self.out, " {name}-opacity=\"{:.3}\"", f64::from(color.alpha) / 255.0);
        }
    }

    fn stroke(&mut self, stroke: &Stroke) {
        self.paint("stroke", stroke.color);
        self.attribute("stroke-width", &[stroke.width]);
        if let Some(dash) = stroke.dash {
            self.attribute("stroke-dasharray", &dash);
        }
    }

    fn points(&mut self, points: &[Point]) {
        self.raw(" points=\"");
        for (at, point) in points.iter().enumerate() {
            if at > 0 {
                self.raw(" ");
            }
            self.number(point.x);
            self.raw(",");
            self.number(point.y);
        }
        self.raw("\"");
    }

    fn text(&mut self, text: &Text) {
        self.raw("<text");
        self.attribute("x", &[text.at.x]);
        self.attribute("y", &[text.at.y]);
        self.attribute("font-size", &[text.size]);
        if text.bold {
            self.raw(" font-weight=\"bold\"");
        }
        match text.anchor {
            Anchor::Start => {}
            Anchor::Middle => self.raw(" text-anchor=\"middle\""),
            Anchor::End => self.raw(" text-anchor=\"end\""),
        }
        self.paint("fill", text.color);
        self.raw(">");
        self.escaped(&text.content);
        self.raw("</text>\n");
    }

    fn layer(&mut self, layer: &Layer) {
        layer.shapes.iter().for_each(|shape| self.shape(shape));
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Rect { rect, fill } => {
                let Rect { x, y, width, height } = *rect;
                self.element("rect", &[("x", x), ("y", y), ("width", width), ("height", height)], *fill);
            }
            Shape::Circle { center, radius, fill } => {
                self.element("circle", &[("cx", center.x), ("cy", center.y), ("r", *radius)], *fill);
            }
            Shape::Polyline { points, stroke } => {
                self.raw("<polyline fill=\"none\" stroke-linejoin=\"round\"");
                self.stroke(stroke);
                self.points(points);
                self.raw("/>\n");
            }
            Shape::Polygon { points, fill } => {
                self.raw("<polygon");
                self.paint("fill", *fill);
                self.points(points);
                self.raw("/>\n");
            }
            Shape::Text(text) => self.text(text),
            Shape::Group { title, layer } => {
                self.raw("<g><title>");
                self.escaped(title);
                self.raw("</title>\n");
                self.layer(layer);
                self.raw("</g>\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use memwarden_model::printable::is_hidden;

    fn render(picture: &Picture) -> String {
        super::render(picture, is_hidden)
    }

    const INK: Color = Color::new(0x12, 0x34, 0x56);

    fn picture(layer: Layer) -> Picture {
        Picture {
            width: 200,
            height: 100,
            title: "Blocks".to_owned(),
            description: "One of each.".to_owned(),
            background: Color::new(255, 255, 255),
            layer,
        }
    }

    #[test]
    fn each_shape_is_written() {
        let mut layer = Layer::default();
        layer.rect(Rect::new(1.0, 2.0, 3.0, 4.004), INK.with_alpha(51));
        layer.line(Point::new(0.0, -0.001), Point::new(9.123_456, 10.0), Stroke::dashed(INK, 1.0, 4.0, 2.5));
        layer.polygon(vec![Point::default(), Point::new(5.0, 0.0), Point::new(5.0, 5.0)], INK);
        let mut inner = Layer::default();
        inner.circle(Point::new(5.0, 5.0), 2.0, INK);
        inner.text(Text::new(Point::new(5.0, 5.0), "1 GiB", 12.0, INK).bold().anchored(Anchor::End));
        layer.group("block 7", inner);
        expect![[r##"
            <svg xmlns="http://www.w3.org/2000/svg" width="200" height="100" viewBox="0 0 200 100" role="img" font-family="DejaVu Sans,Verdana,sans-serif" aria-label="Blocks">
            <title>Blocks</title>
            <desc>One of each.</desc>
            <rect width="100%" height="100%" fill="#ffffff"/>
            <rect x="1" y="2" width="3" height="4" fill="#123456" fill-opacity="0.200"/>
            <polyline fill="none" stroke-linejoin="round" stroke="#123456" stroke-width="1" stroke-dasharray="4 2.5" points="0,0 9.12,10"/>
            <polygon fill="#123456" points="0,0 5,0 5,5"/>
            <g><title>block 7</title>
            <circle cx="5" cy="5" r="2" fill="#123456"/>
            <text x="5" y="5" font-size="12" font-weight="bold" text-anchor="end" fill="#123456">1 GiB</text>
            </g>
            </svg>
        "##]]
        .assert_eq(&render(&picture(layer)));
    }

    #[test]
    fn hostile_labels_stay_text() {
        let hostile = "</text><script>alert('1')</script> & \"\u{0}\u{1b}[31m\u{202e}\n]]>\u{ffff}";
        let mut layer = Layer::default();
        layer.text(Text::new(Point::default(), hostile, 12.0, INK));
        let mut picture = picture(Layer::default());
        picture.title = hostile.to_owned();
        picture.description = hostile.to_owned();
        picture.layer.group(hostile, layer);
        let svg = render(&picture);
        let literal = "&lt;/text&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;\u{fffd}\u{fffd}[31m\u{fffd} ]]&gt;\u{fffd}";
        assert_eq!(svg.matches(literal).count(), 5, "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    proptest::proptest! {
        #[test]
        fn any_label_leaves_well_formed_markup(label: String) {
            let mut layer = Layer::default();
            layer.text(Text::new(Point::default(), label, 12.0, INK));
            let svg = render(&picture(layer));
            assert_eq!(svg.matches('<').count(), svg.matches('>').count());
            assert!(svg.chars().all(|letter| letter == '\n' || !letter.is_control()));
        }
    }
}
