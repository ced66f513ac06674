package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/retrylist"
)

// The programs under test.
const (
	testBuild = "test-build"
	shipped   = "shipped"
	clientKit = "client-kit"
)

// The revisions of the protocol for which the suite has a list of requirements, and
// the older ones.
var (
	revisions = []string{"2025-11-25", "2026-07-28"}
	older     = []string{"2025-06-18", "2025-03-26"}
)

// fixtureFree are the scenarios that need none of the suite's tools, resources and
// prompts.
var fixtureFree = []string{
	"server-initialize", "server-session-lifecycle", "ping", "logging-set-level", "tools-list", "resources-list", "prompts-list",
	"server-sse-multiple-streams", "server-sse-polling", "dns-rebinding-protection", "server-stateless", "http-header-validation",
	"caching", "sep-2164-resource-not-found", "input-required-result-unsupported-methods",
}

// needFixtures are scenarios that cannot fail on a server without the fixtures: the
// suite takes the error for an unknown tool for a rejection of the input, or only
// warns. They are not run on the shipped server.
var needFixtures = []string{
	"input-required-result-missing-input-response", "input-required-result-ignore-extra-params", "input-required-result-validate-input",
}

// judge runs all scenarios on all subjects.
func (s *suite) judge(ctx context.Context, b *build, binary, client string) (*results, error) {
	all := &results{}
	if err := s.judgeRevisions(ctx, all, serverSubject(testBuild, b.url)); err != nil {
		return nil, err
	}
	// The shipped server answers plain calls without the SDK.
	direct := row{target: testBuild, set: "all", scenario: "calls past the SDK", scored: true}
	if n, names := b.directCalls(); n > 0 {
		direct.passed = 1
		all.notes = append(all.notes, fmt.Sprintf("%d calls of the suite were done past the SDK, as the shipped server does plain calls: %s.", n, names))
	} else {
		direct.failures = []string{"there were none, so that the suite did not see how the shipped server does plain calls"}
	}
	all.add(direct)
	if err := judgeHost(ctx, all, testBuild, b.url); err != nil {
		return nil, err
	}
	if err := s.judgeShipped(ctx, all, binary); err != nil {
		return nil, err
	}
	if err := s.judgeRevisions(ctx, all, kit(client)); err != nil {
		return nil, err
	}
	for _, key := range s.baseline.stale() {
		all.add(row{target: "baseline", scenario: key, failures: []string{"the entry is stale: this does not fail"}, scored: true})
	}
	return all, nil
}

// judgeRevisions runs all scenarios of all revisions.
func (s *suite) judgeRevisions(ctx context.Context, all *results, of *subject) error {
	for _, revision := range revisions {
		if err := s.judgeRequirements(ctx, all, of, revision); err != nil {
			return err
		}
	}
	for _, version := range older {
		list, clean, err := s.runStable(ctx, all, of, "--suite", "all", "--spec-version", version)
		if err != nil {
			return err
		}
		s.note(all, of.target, version, list, nil)
		s.agree(all, of.target, version, clean)
	}
	return nil
}

// runStable runs a set of scenarios, and runs it once more if scenarios failed and the
// run of all tests may retry that many (retrylist): some scenarios wait at most half a
// second, which a busy machine can exceed. The verdict is about the set, so that all of
// the set has to pass then.
func (s *suite) runStable(ctx context.Context, all *results, of *subject, args ...string) ([]scenario, bool, error) {
	list, clean, err := s.run(ctx, of, args...)
	retries := retrylist.FromEnv()
	if err != nil || retries == nil {
		return list, clean, err
	}
	var failed []string
	for _, sc := range list {
		if s.fails(of.target, sc) {
			failed = append(failed, sc.name)
		}
	}
	if len(failed) == 0 {
		return list, clean, nil
	}
	if err := retries.Admit(len(failed)); err != nil {
		all.notes = append(all.notes, fmt.Sprintf("No retry of %s with %q: %v.", strings.Join(failed, ", "), args, err))
		return list, clean, nil
	}
	all.notes = append(all.notes, fmt.Sprintf("RETRIED: %s with %q.", strings.Join(failed, ", "), args))
	list, clean, err = s.run(ctx, of, args...)
	for _, name := range failed {
		outcome := "passed when retried"
		if err != nil || slices.ContainsFunc(list, func(sc scenario) bool { return sc.name == name && s.fails(of.target, sc) }) {
			outcome = "failed when retried"
		}
		err = errors.Join(err, retries.Add(fmt.Sprintf("conformance %s %s", of.target, name), outcome))
	}
	return list, clean, err
}

// fails reports whether a scenario fails in what the baseline does not have.
func (s *suite) fails(target string, sc scenario) bool {
	return slices.ContainsFunc(sc.checks, func(c check) bool {
		return c.Status == failure && !s.baseline.expects(target, sc.name, c.ID)
	})
}

func (s *suite) judgeRequirements(ctx context.Context, all *results, of *subject, revision string) error {
	required, err := s.required(of.side, revision)
	if err != nil {
		return err
	}
	list, clean, err := s.runStable(ctx, all, of, "--requirements", revision)
	if err != nil {
		return err
	}
	for name := range required {
		if of.mustPass(name) && !slices.ContainsFunc(list, func(sc scenario) bool { return sc.name == name }) {
			list = append(list, scenario{name, []check{{ID: name, Status: failure, Error: "the scenario is required and did not run"}}})
		}
	}
	s.note(all, of.target, revision, list, required)
	s.agree(all, of.target, revision, clean)
	return nil
}

// agree adds a failure if the verdict of the suite is worse than ours.
func (s *suite) agree(all *results, target, set string, clean bool) {
	if clean {
		return
	}
	for _, r := range all.rows {
		if r.target == target && r.set == set && (len(r.failures) > 0 || r.expected > 0) {
			return
		}
	}
	all.add(row{target: target, set: set, scenario: "verdict of the suite", failures: []string{"it found a failure that is in none of its results"}, scored: true})
}

// note adds the results of scenarios. required names the scored ones; nil: all.
func (s *suite) note(all *results, target, set string, list []scenario, required map[string]bool) {
	for _, sc := range list {
		r := row{target: target, set: set, scenario: sc.name, scored: required == nil || required[sc.name]}
		for _, c := range sc.checks {
			switch c.Status {
			case success:
				if c.vacuous() {
					r.failures = append(r.failures, c.ID+": passed only because the server does not have the tool that it calls")
					continue
				}
				r.passed++
			case "WARNING":
				r.warnings = append(r.warnings, c.ID+": "+c.Error)
			case "SKIPPED":
				r.skipped++
			case failure:
				if s.baseline.expects(target, sc.name, c.ID) {
					r.expected++
				} else {
					r.failures = append(r.failures, c.ID+": "+c.Error)
				}
			}
		}
		all.add(r)
	}
}
