-- Health of Pagoda's kinds for Argo CD, by the rules of kstatus: Suspended where a service is scaled to zero on purpose.
local hs = {}
local status = obj.status

if status == nil or status.conditions == nil then
  -- A ServingProfile that is of no install's class has no status.
  if obj.kind == "ServingProfile" then
    hs.status = "Healthy"
    hs.message = ""
    return hs
  end
  hs.status = "Progressing"
  hs.message = "not looked at by the operator yet"
  return hs
end

if status.observedGeneration ~= nil and obj.metadata.generation ~= nil and status.observedGeneration ~= obj.metadata.generation then
  hs.status = "Progressing"
  hs.message = "a change has not been looked at by the operator yet"
  return hs
end

local lines = {}
for _, condition in ipairs(status.conditions) do
  lines[condition.type] = condition
end

local function told(health, condition)
  hs.status = health
  hs.message = condition.reason .. ": " .. condition.message
  return hs
end

if lines.Reconciling ~= nil and lines.Reconciling.status == "True" then
  return told("Progressing", lines.Reconciling)
end
if lines.Stalled ~= nil and lines.Stalled.status == "True" then
  return told("Degraded", lines.Stalled)
end
if lines.Ready == nil then
  hs.status = "Progressing"
  hs.message = "no condition Ready yet"
  return hs
end
if lines.Ready.reason == "ScaledToZero" then
  return told("Suspended", lines.Ready)
end
if lines.Ready.status ~= "True" then
  return told("Progressing", lines.Ready)
end
return told("Healthy", lines.Ready)
