"""What the dashboards are made of: panels, colors, queries, variables."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
GPU = f'{HERE},gpu=~"$gpu"'
WORK = f'{HERE},workload=~"$workload"'
# What an analyzer looks at may be on no GPU and in no workload; then it is always shown.
SUBJECT = f'{HERE},gpu=~"$gpu|",workload=~"$workload|"'
RANK = f'{WORK},rank=~"$rank"'
NAME = "{{resource}} {{cgroup}}{{gpu}}{{workload}} {{pid}}{{mount}}{{device_region}}"

# Okabe and Ito's colors, which people of every color vision can tell apart.
GRAY, SKY, YELLOW, ORANGE, RED, BLUE = "#999999", "#56B4E9", "#F0E442", "#E69F00", "#D55E00", "#0072B2"
GREEN, PINK = "#009E73", "#CC79A7"
FINE = SKY
HEALTHS = [("ok", SKY), ("unknown", YELLOW), ("warning", ORANGE), ("critical", RED)]
STATES = [("insufficient", GRAY), ("steady", SKY), ("warming", BLUE), ("growing", YELLOW), ("leaking", RED)]


# From the fleet to a node, a run and a rank.
LINKS = [
    ("instance", "node", "This node"), ("run", "runs", "This run"),
    ("workload", "training", "Its ranks"), ("rank", "training", "This rank"),
]


class Board:
    """Places panels from left to right on Grafana's 24 columns."""

    def __init__(self, name):
        self.name = name
        self.panels = []
        # Where panels are added: the board, or the row that is closed.
        self.into = self.panels
        self.ids = 0
        self.x = self.y = self.tallest = 0

    def _add(self, panel, width, height):
        if self.x + width > 24:
            self.x, self.y, self.tallest = 0, self.y + self.tallest, 0
        self.ids += 1
        panel["id"] = self.ids
        panel["gridPos"] = {"x": self.x, "y": self.y, "w": width, "h": height}
        self.into.append(panel)
        self.x, self.tallest = self.x + width, max(self.tallest, height)

    def _links(self, value):
        """The links to the other boards, by the label that they are about; `value` is how Grafana names its value."""
        for label, board, title in LINKS:
            if board != self.name:
                shown = "${" + value.format(label) + "}"
                url = f"/d/memwarden-{board}?var-{label}={shown}&var-datasource=${{datasource}}&${{__url_time_range}}"
                yield label, {"title": title, "url": url}

    def row(self, title, is_open=False):
        """A row; the first one is open."""
        self.into = self.panels
        self.x, self.y, self.tallest = 0, self.y + self.tallest, 0
        row = {"type": "row", "title": title, "collapsed": not is_open and bool(self.panels), "panels": []}
        self._add(row, 24, 1)
        if row["collapsed"]:
            self.into = row["panels"]

    def panel(self, kind, title, queries, unit, width, height, description="", **more):
        targets = [
            {"refId": chr(65 + place), "datasource": SOURCE, "expr": query, "legendFormat": legend, **extra}
            for place, (query, legend, *rest) in enumerate(queries)
            for extra in [rest[0] if rest else {}]
        ]
        defaults = {"unit": unit, **more.pop("defaults", {})}
        said = defaults.get("noValue", "no value was measured in this time")
        defaults["noValue"] = said[0].upper() + said[1:] + "."
        overrides, told = more.pop("overrides", []), " ".join(legend for _, legend, *_ in queries)
        if kind == "table":
            overrides = [*overrides, *(of(label, ("links", [link])) for label, link in self._links("__value.raw"))]
        elif links := [link for label, link in self._links("__field.labels.{}") if f"{{{{{label}}}}}" in told]:
            defaults["links"] = links
        panel = {
            "type": kind,
            "title": title,
            "description": description,
            "datasource": SOURCE,
            "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": overrides},
            "options": more.pop("options", {}),
            **more,
        }
        self._add(panel, width, height)

    def lines(self, title, queries, unit, width=8, height=8, description="", stack=False, log=False, overrides=(), **defaults):
        custom = {"lineWidth": 1, "fillOpacity": 25 if stack else 8, "showPoints": "never"}
        if stack:
            custom["stacking"] = {"mode": "normal", "group": "A"}
        if log:
            custom["scaleDistribution"] = {"type": "log", "log": 10}
        options = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        self.panel("timeseries", title, queries, unit, width, height, description,
                   defaults={"custom": custom, **defaults}, overrides=list(overrides), options=options)

    def stat(self, title, query, unit, width=4, description="", steps=(), mappings=(), **defaults):
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
        self.panel("stat", title, [(query, "")], unit, width, 4, description,
                   defaults={"thresholds": thresholds(*steps), "mappings": list(mappings), **defaults}, options=options)

    def bars(self, title, queries, unit, width=8, height=8, description="", steps=(), **defaults):
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal",
            "displayMode": "basic", "showUnfilled": True, "valueMode": "color",
        }
        self.panel("bargauge", title, queries, unit, width, height, description,
                   defaults={"thresholds": thresholds(*steps), "color": {"mode": "thresholds"}, **defaults}, options=options)

    def timeline(self, title, queries, width=12, height=8, description="", steps=(), mappings=(), unit="short", **defaults):
        options = {
            "mergeValues": True, "showValue": "auto" if mappings else "never", "alignValue": "left", "rowHeight": 0.85,
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "single"},
        }
        self.panel("state-timeline", title, queries, unit, width, height, description,
                   defaults={
                       "custom": {"fillOpacity": 80, "lineWidth": 0}, "color": {"mode": "thresholds"},
                       "thresholds": thresholds(*steps), "mappings": list(mappings), **defaults,
                   }, options=options)

    def table(self, title, query, width=12, height=8, description="", hide=(), shown=(), unit="short", names=None, overrides=(), **defaults):
        hidden = [name for name in ("instance", "job", *hide) if name not in shown]
        self._table(title, [query], [], width, height, description, hidden, unit, names, overrides, defaults)

    def joined(self, title, columns, width=24, height=10, description="", hide=(), names=None):
        """A table of one row for each set of labels, which all queries share; columns are (query, title, unit)."""
        values = {f"Value #{chr(65 + place)}": name for place, (_, name, _) in enumerate(columns)}
        overrides = [of(name, ("unit", unit)) for _, name, unit in columns]
        self._table(title, [query for query, *_ in columns], [{"id": "merge", "options": {}}], width, height, description,
                    ("job", *hide), "short", {**values, **(names or {})}, overrides, {"noValue": "not told", "custom": {"filterable": True}})

    def _table(self, title, queries, transformations, width, height, description, hide, unit, names, overrides, defaults):
        excluded = {name: True for name in ("Time", "__name__", *hide)}
        organize = {"id": "organize", "options": {"excludeByName": excluded, **({"renameByName": names} if names else {})}}
        self.panel("table", title, [(query, "", {"format": "table", "instant": True}) for query in queries], unit, width, height,
                   description, transformations=[*transformations, organize], overrides=list(overrides), defaults=defaults)

    def heatmap(self, title, query, unit, width=12, height=8, description=""):
        options = {
            "calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "unit": unit}, "rowsFrame": {"layout": "le"},
            # One hue from light to dark, which people of every color vision can order.
            "color": {"mode": "scheme", "scheme": "Blues", "exponent": 0.5, "steps": 64, "reverse": False},
            "filterValues": {"le": 1e-9}, "showValue": "never", "legend": {"show": True}, "tooltip": {"mode": "single", "show": True},
        }
        self.panel("heatmap", title, [(query, "{{le}}", {"format": "heatmap"})], unit, width, height, description, options=options)


def level(color, value):
    return {"color": color, "value": value}


def thresholds(*steps):
    return {"mode": "absolute", "steps": [level(FINE, None), *steps]}


def words(named):
    """Shows the numbers 0, 1, … as words in their colors."""
    return [{
        "type": "value",
        "options": {str(place): {"text": word, "color": color, "index": place} for place, (word, color) in enumerate(named)},
    }]


def numbered(metric, label, named, matchers):
    """A query that gives each subject the number of the one state it is in."""
    parts = [f'{place} * {metric}{{{matchers},{label}="{word}"}}' for place, (word, _) in enumerate(named)]
    # Of the products only that of the state it is in is not zero, so the largest is its number.
    without = "health, rule" if label == "health" else label
    return f"max without ({without}) ({' or '.join(parts)})"


def of(name, *properties):
    """An override for the series with this name."""
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": key, "value": value} for key, value in properties]}


def painted(name, color, *properties):
    return of(name, ("color", {"mode": "fixed", "fixedColor": color}), *properties)


def like(pattern, *properties):
    return {**of(pattern, *properties), "matcher": {"id": "byRegexp", "options": pattern}}


def variable(name, query, label):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 3,
        "query": {"query": query, "refId": name}, "definition": query,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }


def dashboard(name, description, b, variables, tags=("gpu", "memory")):
    return {
        "uid": f"memwarden-{name}",
        "title": f"memwarden / {name}",
        "description": description,
        "tags": ["memwarden", *tags],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}, *variables]},
        "annotations": {
            "list": [{
                "name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red",
                "expr": f'ALERTS{{{HERE},alertstate="firing"}}', "titleFormat": "{{alertname}}", "textFormat": "{{severity}}",
            }]
        },
        "links": [{
            "type": "dashboards", "title": "memwarden", "tags": ["memwarden"], "asDropdown": True, "icon": "external link",
            "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "The other dashboards, of the same nodes and time", "url": "",
        }],
        "panels": b.panels,
    }
